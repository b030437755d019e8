"""physworld: simulated clips whose answers the simulator decides, and a tiny vision-language model that watches them."""
