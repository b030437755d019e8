"""Scenes of three suites: perception (leftmost, highest), causal (gap, tower), affordance (fits, which_fits).

Each kind is three functions of a flat dict `p` of scene parameters (px, s, px/s, rad, or words):
`sample_*(rng, want, p)` proposes a scene that may have the answer `want`; `simulate_*(p, dt)` runs it and returns
(answer, world with three frames), the answer "" where the end is too close to call; `facts_*(p)` says what one sees.
"""

import random

from physworld.world import COLOURS, DARK, FLOOR, ORANGE, SIZE, World

BLOCK = 13.0                 # px, side of a perception block
SETTLE = 1.1                 # s, until dropped blocks lie still
CLEAR_LEAD = 6.0             # px, by which the winner of a comparison must lead
EDGE = 25.0                  # px, x where the ledge before the gap ends
STEP_DOWN = 8.0              # px, how much lower the far ledge lies
GAP_FRAMES = 0.07            # s between frames of the rolling ball
BEAM = (48.0, 5.0)           # px, length and thickness of the tower's beam
PILLAR = (10.0, 17.0)        # px, width and height of the blocks below it
WEIGHT_DENSITY = 6.0         # of the orange weight; everything else has 1
SETTLE_WEIGHT = 0.4          # s, until the weight lies still on the beam
TILT_STANDS = 0.12           # rad, a beam tilted less still stands
FINGER = (4.0, 18.0)         # px, thickness and length of a finger
SMALL_FINGER = (2.0, 14.0)   # px, the same of the gripper over three blocks
PREY_HEIGHT = 12.0           # px, height of what is to be gripped
DESCENT = 0.8                # s, in which a gripper is all the way down


def pick_colours(rng: random.Random, first: str | None = None) -> list[str]:
    """Three different colours, `first` leading where given, the others in random order."""
    others = [c for c in COLOURS if c != first]
    rng.shuffle(others)
    return ([first] + others)[:3] if first else others[:3]


def winner(values: dict[str, float]) -> str:
    """The name with the smallest value (px), or "" where it leads by less than CLEAR_LEAD."""
    names = sorted(values, key=values.get)
    return names[0] if values[names[1]] - values[names[0]] >= CLEAR_LEAD else ""


# ---- leftmost: three blocks dropped side by side, with a push ----

def sample_leftmost(rng, want, p):
    colours = pick_colours(rng, want)
    p.update(colours=colours, push=0.0, shape="disc" if p["ood"] else "box")
    for i, x in enumerate((10, 28, 46)):
        p.update({f"x{i}": x + rng.uniform(-3, 3), f"y{i}": rng.uniform(12, 30), f"v{i}": rng.uniform(-35, 35)})


def simulate_leftmost(p, dt):
    world = World(p, dt)
    world.room()
    side = BLOCK * p["scale"]
    bodies = {c: world.thing(p["shape"], p[f"x{i}"], p[f"y{i}"], side, side, COLOURS[c], (p[f"v{i}"] + p["push"], 0))
              for i, c in enumerate(p["colours"])}
    world.record(0.18)
    world.run(SETTLE)
    return winner({c: body.position.x for c, body in bodies.items()}), world


def facts_leftmost(p):
    return dict(zip(("left", "middle", "right"), p["colours"]))


# ---- highest: three blocks dropped on each other ----

def sample_highest(rng, want, p):
    p.update(colours=pick_colours(rng, want)[::-1], push=0.0, shape="hexagon" if p["ood"] else "box")
    x, spread = rng.uniform(18, 38), rng.choice([0.0, 8.5])      # a column, or two below and one on top
    offsets = [0, 0, 0] if not spread else [-spread, spread, 0]
    for i, offset in enumerate(offsets):
        level = i if not spread else i // 2
        lift = (level + 0.5) * BLOCK * p["scale"] + (level + 1) * rng.uniform(1.5, 3) + (rng.uniform(0, 8) if spread else 0)
        p.update({f"x{i}": x + offset + rng.uniform(-1.2, 1.2), f"y{i}": FLOOR - lift})


def simulate_highest(p, dt):
    world = World(p, dt)
    world.room()
    side = BLOCK * p["scale"]
    bodies = {c: world.thing(p["shape"], p[f"x{i}"], p[f"y{i}"], side, side, COLOURS[c], (p["push"], 0))
              for i, c in enumerate(p["colours"])}
    world.record(0.09)
    world.run(SETTLE)
    return winner({c: body.position.y for c, body in bodies.items()}), world


def facts_highest(p):
    return {"top": p["colours"][2], "below": p["colours"][0]}


# ---- gap: a ball rolls towards a gap; the far ledge lies lower ----

def sample_gap(rng, want, p):
    p.update(speed=rng.uniform(35, 130), gap=rng.uniform(11, 25), x=rng.uniform(4, 6), radius=5 * p["scale"],
             level=rng.uniform(24, 30), colour=rng.choice(list(COLOURS)), shape="box" if p["ood"] else "disc")


def simulate_gap(p, dt):
    world, far = World(p, dt), EDGE + p["gap"]
    low = p["level"] + STEP_DOWN
    world.fixture(EDGE + p["gap"] / 2, low + 20, p["gap"], 40, DARK, ghost=True)
    world.fixture(EDGE - 50, p["level"] + 20, 100, 40)
    world.fixture(far + 50, low + 20, 100, 40)
    ball = world.thing(p["shape"], p["x"], p["level"] - p["radius"], 2 * p["radius"], 2 * p["radius"],
                       COLOURS[p["colour"]], (p["speed"], 0))
    ball.angular_velocity = p["speed"] / p["radius"] if p["shape"] == "disc" else 0.0
    world.record(GAP_FRAMES)
    world.run(1.2, lambda: ball.position.y > low or ball.position.x > far + p["radius"])
    if ball.position.y > low:
        return "no", world
    return ("yes" if ball.position.x > far + p["radius"] else ""), world


def facts_gap(p):
    return {"ball": "fast" if p["speed"] > 82 else "slow", "gap": "wide" if p["gap"] > 18 else "narrow"}


# ---- tower: a beam on two or three blocks, one of them red, and a weight on the beam ----

def sample_tower(rng, want, p):
    pillars = rng.choice([["left", "right"], ["left", "middle", "right"], ["left", "middle", "right"]])
    red = rng.choice(pillars)
    side = {"left": "right", "right": "left", "middle": rng.choice(["left", "right"])}[red]
    if want == "no" and red != "middle":
        side = red if len(pillars) == 3 else rng.choice(["left", "right"])
    at = {"left": 9, "middle": 28, "right": 47}
    p.update(pillars=pillars, red=red, side=side, weight=13.5 if side == "left" else 42.5, colour=rng.choice(["blue", "green"]),
             block=12 * p["scale"], shape="triangle" if p["ood"] else "box", drop=rng.uniform(2, 7))
    p["weight"] += rng.uniform(-2.5, 2.5)
    p.update({f"x_{name}": at[name] + rng.uniform(-2, 2) for name in pillars})


def simulate_tower(p, dt):
    world = World(p, dt)
    world.room()
    width, height = PILLAR
    pillars = {name: world.thing("box", p[f"x_{name}"], FLOOR - height / 2, width, height,
                                 COLOURS["red" if name == p["red"] else p["colour"]]) for name in p["pillars"]}
    beam = world.thing("box", SIZE / 2, FLOOR - height - BEAM[1] / 2, *BEAM, p["furniture"])
    top = FLOOR - height - BEAM[1]
    world.thing(p["shape"], p["weight"], top - p["block"] / 2 - p["drop"], p["block"], p["block"], ORANGE,
                density=WEIGHT_DENSITY)
    world.record(0.12)
    world.run(SETTLE_WEIGHT)
    if abs(beam.angle) > TILT_STANDS / 4:
        return "", world                                          # it falls before any block is taken
    world.take(pillars[p["red"]])
    fell = world.run(0.9, lambda: abs(beam.angle) > 2 * TILT_STANDS)
    return "no" if fell else ("yes" if abs(beam.angle) < TILT_STANDS / 2 else ""), world


def facts_tower(p):
    return {"red": p["red"], "weight": p["side"], "blocks": {2: "two", 3: "three"}[len(p["pillars"])]}


# ---- fits: a gripper comes down on a block ----

def sample_fits(rng, want, p):
    opening = rng.uniform(15, 28)
    width = opening - rng.uniform(3, 12) if want == "yes" else opening + rng.uniform(3, 12)
    p.update(opening=opening, width=max(7, width), x=rng.uniform(23, 33), aim=0.0, tip=rng.uniform(17, 20),
             colour=rng.choice(list(COLOURS)), shape="trapezoid" if p["ood"] else "box")


def simulate_fits(p, dt):
    world = World(p, dt)
    world.room()
    height = PREY_HEIGHT * p["scale"]
    world.thing(p["shape"], p["x"], FLOOR - height / 2, p["width"], height, COLOURS[p["colour"]])
    gripper = world.gripper(p["x"] + p["aim"], p["tip"], p["opening"], *FINGER)
    world.record(0.13)
    world.run(DESCENT)
    left = FLOOR - gripper.position.y - FINGER[1]                 # px between the finger tips and the floor
    return "yes" if left < 2 else ("no" if left > 5 else ""), world


def facts_fits(p):
    return {"block": "narrower" if p["width"] < p["opening"] else "wider",
            "gripper": "wide" if p["opening"] > 21.5 else "narrow"}


# ---- which_fits: three blocks, one gripper ----

def sample_which_fits(rng, want, p):
    colours = pick_colours(rng, want)
    widths = [rng.uniform(6, 7.5), rng.uniform(14, 16), rng.uniform(14, 16)]
    order = rng.sample(range(3), 3)
    room = (SIZE - sum(widths)) / 4
    p.update(colours=[colours[i] for i in order], opening=11 * p["scale"], grow=0.0, hover=rng.uniform(14, 42),
             drift=rng.uniform(-25, 25), height=rng.uniform(14, 18), shape="trapezoid" if p["ood"] else "box")
    x = 0.0
    for slot, i in enumerate(order):
        x += room + widths[i] / 2
        p.update({f"x{slot}": x, f"w{slot}": widths[i]})
        x += widths[i] / 2


def three_blocks(p, dt):
    """The three blocks on the floor, before any gripper."""
    world = World(p, dt)
    world.room()
    for i, colour in enumerate(p["colours"]):
        world.thing(p["shape"], p[f"x{i}"], FLOOR - p["height"] / 2, p[f"w{i}"] + p["grow"], p["height"], COLOURS[colour])
    return world


def simulate_which_fits(p, dt):
    fitting = []
    for i, colour in enumerate(p["colours"]):
        world = three_blocks(p, dt)
        gripper = world.gripper(p[f"x{i}"], FLOOR - p["height"] - 3, p["opening"], *SMALL_FINGER)
        world.run(DESCENT / 2)
        if FLOOR - gripper.position.y - SMALL_FINGER[1] < p["height"] * 0.4:
            fitting.append(colour)
    world = three_blocks(p, dt)
    world.gripper(p["hover"], 20, p["opening"], *SMALL_FINGER, still=True).velocity = (p["drift"], 0)
    world.record(0.1)
    return fitting[0] if len(fitting) == 1 else "", world


def facts_which_fits(p):
    names = ["narrow" if p[f"w{i}"] < 10 else "wide" for i in range(3)]
    return dict(zip(p["colours"], names))
