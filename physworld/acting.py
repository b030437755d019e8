"""Scenes of three suites: planning (next_action), failure (placement, slip), driving (what_to_do).

The same three functions a kind as in seeing.py: `sample_*(rng, want, p)`, `simulate_*(p, dt)`, `facts_*(p)`.
"""

import math

from physworld.world import COLOURS, DARK, FLOOR, GOAL, SIZE, World

CARGO = 11.0                 # px, side of the block that is to reach the goal
GOAL_SIDE = 17.0             # px
PUSH = 72.0                  # px/s, speed that a push gives
LIFT = (55.0, 0.4)           # px/s and s: how fast and how long a lift goes up
PLAN_FRAMES = 0.08           # s between frames
PLAN_TIME = 1.0              # s, from the action to the look at the goal
SHELF = 36.0                 # px, y of the shelf's upper side
TRAY = (36.0, 5.0)           # px, length and thickness of the tray
TRAYS = {"rough": (150, 85, 30), "icy": (80, 205, 255)}
TRAY_FRICTION = {"rough": 0.9, "icy": 0.04}
LANE = 15.0                  # px, width of a lane; the middle one is centred in the picture
CAR = (9.0, 11.0)            # px, width and length
EGO_SPEED = 40.0             # px/s
BRAKING = 45.0               # px/s^2
SIDEWAYS = 75.0              # px/s, speed of a lane change
DRIVE_FRAMES = 0.08          # s between frames
DRIVE_TIME = 0.75            # s, from the decision on
WHITE = (255, 255, 255)


# ---- next_action: a block and a goal zone; each action is tried ----

def sample_next_action(rng, want, p):
    falling = want == "wait" or rng.random() < 0.25 and want != "lift"
    x = rng.uniform(22, 34)
    dx = {"push left": -16, "push right": 16}.get(want, 0) + rng.uniform(-2, 2)
    high = want == "lift"
    p.update(x=x, y=rng.uniform(12, 16) if falling else FLOOR - CARGO * p["scale"] / 2, falling=falling, aim=0.0,
             goal_x=x + dx, goal_y=FLOOR - CARGO / 2 - (LIFT[0] * LIFT[1] if high else 0) - rng.uniform(0, 2),
             where="above" if high else {-1: "left", 1: "right"}[int(math.copysign(1, dx))] if abs(dx) > 8 else "below",
             colour=rng.choice(["red", "blue", "yellow"]), shape="hexagon" if p["ood"] else "box")


def act(p, action, dt):
    """Run one action ("" stops before it); returns (whether the block ends in the goal, world)."""
    world = World(p, dt)
    world.room()
    world.fixture(p["goal_x"], p["goal_y"], GOAL_SIDE, GOAL_SIDE, GOAL, ghost=True)
    side = CARGO * p["scale"]
    block = world.thing(p["shape"], p["x"], p["y"], side, side, COLOURS[p["colour"]])
    world.record(PLAN_FRAMES)
    if action == "lift":
        block.body_type = block.KINEMATIC
        block.velocity, block.angular_velocity = (0, -LIFT[0]), 0
        world.run(LIFT[1])
        block.velocity = (0, 0)
    elif action != "wait":
        block.velocity = (PUSH if action == "push right" else -PUSH, block.velocity.y)
    world.run(PLAN_TIME)
    off = max(abs(block.position.x - p["goal_x"] - p["aim"]), abs(block.position.y - p["goal_y"]))
    return off < GOAL_SIDE / 2 - 1, world


def simulate_next_action(p, dt):
    tried = {action: act(p, action, dt) for action in ("push left", "push right", "lift", "wait")}
    reached = [action for action, (hit, _) in tried.items() if hit]
    return reached[0] if len(reached) == 1 else "", tried["wait"][1]


def facts_next_action(p):
    return {"goal": p["where"], "block": "falling" if p["falling"] else "resting"}


# ---- placement: a block is let go over a shelf ----

def sample_placement(rng, want, p):
    width = rng.uniform(20, 26)
    reach = width / 2
    offset = rng.uniform(3.5 - reach, reach - 3.5) if want == "yes" else rng.choice([-1, 1]) * (reach + rng.uniform(3.5, 9))
    p.update(shelf=rng.uniform(22, 34), width=width, offset=offset, y=rng.uniform(14, 18), side=13 * p["scale"],
             colour=rng.choice(list(COLOURS)), shape="hexagon" if p["ood"] else "box")


def simulate_placement(p, dt):
    world = World(p, dt)
    world.room()
    world.fixture(p["shelf"], SHELF + 2.5, p["width"], 5, DARK)
    x = p["shelf"] + p["offset"]
    world.fixture(x, p["y"] - p["side"] / 2 - 3, 8, 4, ghost=True)             # the hand that lets go
    block = world.thing(p["shape"], x, p["y"], p["side"], p["side"], COLOURS[p["colour"]])
    world.record(0.12)
    fell = world.run(1.0, lambda: block.position.y > SHELF + 4)
    stands = block.position.y < SHELF - p["side"] * 0.4 and abs(block.angle) < 0.1
    return "no" if fell else ("yes" if stands else ""), world


def facts_placement(p):
    inside = abs(p["offset"]) < p["width"] / 2
    return {"middle": "supported" if inside else "unsupported", "block": "centred" if abs(p["offset"]) < 4
            else ("left" if p["offset"] < 0 else "right")}


# ---- slip: a block comes down on a tilted tray, rough (brown) or icy (light blue) ----

def sample_slip(rng, want, p):
    sense = {"falls left": -1, "falls right": 1}.get(want, rng.choice([-1, 1]))
    surface = "icy" if want != "stays" or rng.random() < 0.2 else "rough"
    steep = want != "stays" or surface == "rough" and rng.random() < 0.6
    degrees = rng.uniform(13, 28) if steep else (rng.uniform(0, 4) if surface == "rough" else 0.0)
    p.update(surface=surface, tilt=sense * math.radians(degrees), x=28 + rng.uniform(-4, 4), y=rng.uniform(34, 37),
             side=12 * p["scale"], colour=rng.choice(["red", "green", "yellow"]), shape="hexagon" if p["ood"] else "box",
             grip=TRAY_FRICTION[surface] * (p["friction"] / 0.5))


def simulate_slip(p, dt):
    world = World(p, dt)
    world.room()
    world.fixture(SIZE / 2, p["y"], *TRAY, TRAYS[p["surface"]], p["tilt"], friction=p["grip"])
    above = (p["x"] - SIZE / 2) * math.sin(p["tilt"]) - (TRAY[1] + p["side"]) / 2 / math.cos(p["tilt"])
    block = world.thing(p["shape"], p["x"], p["y"] + above - 1.5, p["side"], p["side"], COLOURS[p["colour"]], friction=1.0)
    block.angle = p["tilt"]
    world.record(0.07)
    if world.run(1.6, lambda: abs(block.position.x - SIZE / 2) > TRAY[0] / 2):
        return "falls left" if block.position.x < SIZE / 2 else "falls right", world
    return ("stays" if block.velocity.length < 1 else ""), world


def facts_slip(p):
    degrees = math.degrees(p["tilt"])
    return {"tray": p["surface"], "tilt": "flat" if abs(degrees) < 8 else ("left" if degrees < 0 else "right")}


# ---- what_to_do: seen from above, the blue car drives up the middle lane ----

def sample_what_to_do(rng, want, p):
    ahead = {"keep going": "free", "brake": "far"}.get(want, "near")
    sides = {"steer left": (False, True), "steer right": (True, False)}.get(want)
    sides = sides or (rng.random() < 0.5, rng.random() < 0.5)
    p.update(ahead=ahead, left="blocked" if sides[0] else "free", right="blocked" if sides[1] else "free",
             distance={"free": 200.0, "far": rng.uniform(24, 28), "near": rng.uniform(8, 12)}[ahead],
             start=rng.uniform(48.5, 50.5), speed=EGO_SPEED * p["scale"], shape="disc" if p["ood"] else "box")
    p.update({f"y_{side}": rng.uniform(24, 40) for side in ("left", "right")})


def street(p, dt):
    """The road with its cars at the first frame; returns (world, own car, its shape)."""
    world = World(p, dt, gravity=False)
    world.fixture(SIZE / 2, SIZE / 2, 3 * LANE + 2, 2 * SIZE, ghost=True)
    for x in (-LANE / 2, LANE / 2):
        world.fixture(SIZE / 2 + x, SIZE / 2, 1, 2 * SIZE, WHITE, ghost=True)
    nose = p["start"] - CAR[1] / 2 - 2 * DRIVE_FRAMES * p["speed"]
    cars = [(0, nose - p["distance"] - CAR[1] / 2)] if p["ahead"] != "free" else []
    cars += [(LANE * (1 if side == "right" else -1), p[f"y_{side}"]) for side in ("left", "right") if p[side] == "blocked"]
    for x, y in cars:
        world.fixture(SIZE / 2 + x, y, CAR[0] + (1 if p["ood"] else 0), CAR[1], COLOURS["red"], shape=p["shape"])
    own = world.body(SIZE / 2, p["start"], (0, -p["speed"]), stiff=True)
    return world, own, world.attach(own, "box", *CAR, COLOURS["blue"])


def drive(p, manoeuvre, dt):
    """Run one manoeuvre; returns (whether it touched nothing, world)."""
    world, own, shape = street(p, dt)
    world.record(DRIVE_FRAMES)
    aside = {"steer left": -1, "steer right": 1}.get(manoeuvre, 0)
    for _ in range(round(DRIVE_TIME / dt)):
        speed = -own.velocity.y
        speed = max(0.0, speed - BRAKING * dt) if manoeuvre == "brake" else speed
        turning = aside and abs(own.position.x - SIZE / 2) < LANE - SIDEWAYS * dt / 2
        own.velocity = (aside * SIDEWAYS if turning else 0.0, -speed)
        world.space.step(dt)
        if any(hit.shape is not None and not hit.shape.sensor for hit in world.space.shape_query(shape)):
            return False, world
    return True, world


def simulate_what_to_do(p, dt):
    for manoeuvre in ("keep going", "brake"):                     # the least intrusive first
        safe, world = drive(p, manoeuvre, dt)
        if safe:
            return manoeuvre, world
    safe = [m for m in ("steer left", "steer right") if drive(p, m, dt)[0]]
    return safe[0] if len(safe) == 1 else "", world


def facts_what_to_do(p):
    return {"ahead": p["ahead"], "left": p["left"], "right": p["right"]}
