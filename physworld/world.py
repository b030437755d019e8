"""The ground of physworld: a pymunk space that remembers its colours, and a painter that turns it into 56x56 pictures.

One world unit is one pixel, x grows to the right and y DOWNWARDS, times are seconds, speeds px/s, angles radians.
"""

import random

import pymunk
from PIL import Image, ImageDraw

SIZE = 56                    # px, width and height of a frame
DT = 1 / 60                  # s, time step of the simulation that decides the answers
FLOOR = 50.0                 # px, y of the floor's upper side
ITERATIONS = 10              # contact solver sweeps per step
FINE = 4                     # frames are painted this many times larger, then every 4th pixel is kept: clean edges
RESTITUTION = 0.05           # bounce of every body: nearly none
TINT = 8                     # levels: a background's channels vary by as much, without meaning

COLOURS = {"red": (230, 25, 25), "green": (10, 160, 60), "blue": (30, 60, 235), "yellow": (250, 195, 0)}
DARK = (45, 45, 55)          # grippers, pits
GOAL = (150, 240, 150)       # goal zones
ORANGE = (255, 120, 0)       # weights

# Looks and physics: the first of each pair for every split but "ood", whose ranges lie outside.
BACKGROUNDS = {False: [(240, 240, 245), (245, 240, 225), (225, 238, 248)], True: [(205, 185, 215), (180, 205, 195)]}
FURNITURE = {False: [(125, 125, 130), (140, 120, 105)], True: [(150, 115, 165), (110, 155, 165)]}
SHADES = {False: (0.95, 1.0), True: (0.68, 0.78)}                  # factor on every colour
GRAVITIES = {False: [(280.0, 320.0)], True: [(200.0, 240.0), (360.0, 410.0)]}   # px/s^2
FRICTIONS = {False: [(0.45, 0.55)], True: [(0.32, 0.38), (0.62, 0.7)]}          # Coulomb, of each contact
SCALES = {False: [(0.97, 1.03)], True: [(0.88, 0.92), (1.08, 1.12)]}            # factor on the sizes of things


def look(rng: random.Random, ood: bool) -> dict:
    """Colours, gravity (px/s^2), friction and scale of one scene; `ood` takes the ranges outside the training ones."""
    def within(ranges):
        return rng.uniform(*rng.choice(ranges[ood]))
    return {"ood": ood, "background": rng.choice(BACKGROUNDS[ood]), "furniture": rng.choice(FURNITURE[ood]),
            "shade": rng.uniform(*SHADES[ood]), "gravity": within(GRAVITIES), "friction": within(FRICTIONS),
            "scale": within(SCALES)}


def outline(shape: str, w: float, h: float) -> list[tuple[float, float]]:
    """Corners (px, about the centre) of a box, hexagon (flat top and bottom), trapezoid or triangle, w by h px."""
    x, y = w / 2, h / 2
    return {"box": [(-x, -y), (x, -y), (x, y), (-x, y)],
            "hexagon": [(-x * .7, -y), (x * .7, -y), (x, 0), (x * .7, y), (-x * .7, y), (-x, 0)],
            "trapezoid": [(-x * .8, -y), (x * .8, -y), (x, y), (-x, y)],
            "triangle": [(0, -y), (x, y), (-x, y)]}[shape]


class World:
    """A pymunk space with painted shapes and a film: `p` gives gravity, friction, shade and furniture (see `look`)."""

    def __init__(self, p: dict, dt: float, gravity: bool = True):
        self.p, self.dt, self.film, self.painted = p, dt, [], []
        self.space = pymunk.Space()
        self.space.gravity = (0, p["gravity"] if gravity else 0)
        self.space.iterations = ITERATIONS

    def body(self, x: float, y: float, velocity=(0.0, 0.0), still: bool = False, stiff: bool = False) -> pymunk.Body:
        """A body at (x, y) px; `still`: moved by nothing but its own velocity; `stiff`: falls but never turns."""
        body = pymunk.Body(body_type=pymunk.Body.KINEMATIC if still else pymunk.Body.DYNAMIC)
        body.position, body.velocity, body.stiff = (x, y), velocity, stiff
        self.space.add(body)
        return body

    def attach(self, body, shape: str, w: float, h: float, colour, dx=0.0, dy=0.0, density=1.0, friction=None,
               ghost=False) -> pymunk.Shape:
        """Give `body` a shape ("disc" has diameter w) of w by h px at (dx, dy); a `ghost` is only painted."""
        if shape == "disc":
            made = pymunk.Circle(body, w / 2, (dx, dy))
        else:
            made = pymunk.Poly(body, [(a + dx, b + dy) for a, b in outline(shape, w, h)])
        made.friction = self.p["friction"] ** 0.5 if friction is None else friction    # pymunk multiplies the two
        made.elasticity, made.sensor = RESTITUTION ** 0.5, ghost
        if body.body_type == pymunk.Body.DYNAMIC:
            made.density = density
        self.space.add(made)
        if body.stiff:
            body.moment = float("inf")
        self.painted.append((made, tuple(int(c * self.p["shade"]) for c in colour)))
        return made

    def thing(self, shape, x, y, w, h, colour, velocity=(0.0, 0.0), **kwargs) -> pymunk.Body:
        """A free body of one shape, centred at (x, y) px."""
        body = self.body(x, y, velocity)
        self.attach(body, shape, w, h, colour, **kwargs)
        return body

    def fixture(self, x, y, w, h, colour=None, angle=0.0, shape="box", **kwargs) -> pymunk.Body:
        """A piece of furniture that nothing moves, centred at (x, y) px, turned by `angle` rad."""
        body = self.body(x, y, still=True)
        body.angle = angle
        self.attach(body, shape, w, h, colour or self.p["furniture"], **kwargs)
        return body

    def room(self) -> None:
        """A floor over the whole width and two walls just outside the picture."""
        self.fixture(SIZE / 2, FLOOR + 10, 3 * SIZE, 20)
        for x in (-5, SIZE + 5):
            self.fixture(x, 0, 10, 4 * SIZE)

    def gripper(self, x: float, tip: float, opening: float, finger: float, length: float, still=False) -> pymunk.Body:
        """Two fingers (`finger` px thick, `length` px long, `opening` px apart), tips at y = `tip`, hanging on a bar."""
        body = self.body(x, tip - length, still=still, stiff=True)
        self.attach(body, "box", opening + 2 * finger, 4, DARK, dy=-2)
        for side in (-1, 1):
            self.attach(body, "box", finger, length, DARK, dx=side * (opening + finger) / 2, dy=length / 2)
        return body

    def take(self, body: pymunk.Body) -> None:
        """Take a body out of the world."""
        self.painted = [(s, c) for s, c in self.painted if s.body is not body]
        self.space.remove(body, *body.shapes)

    def run(self, seconds: float, until=None) -> bool:
        """Simulate on for `seconds`; stop, and return True, as soon as `until()` holds."""
        for _ in range(round(seconds / self.dt)):
            self.space.step(self.dt)
            if until is not None and until():
                return True
        return False

    def shoot(self) -> None:
        """Keep the present state as the film's next frame: [(corners or (x, y, radius), colour)], px."""
        self.film.append([(place(shape), colour) for shape, colour in self.painted])

    def record(self, gap: float) -> None:
        """Shoot three frames, `gap` seconds apart."""
        self.shoot()
        for _ in range(2):
            self.run(gap)
            self.shoot()


def place(shape: pymunk.Shape):
    """Where a shape is now: a list of its corners, or (x, y, radius) of a disc, px."""
    if isinstance(shape, pymunk.Circle):
        return (*shape.body.local_to_world(shape.offset), shape.radius)
    return [tuple(shape.body.local_to_world(v)) for v in shape.get_vertices()]


def paint(state, background) -> Image.Image:
    """One frame, 56x56 RGB, of a state that `World.shoot` kept."""
    image = Image.new("RGB", (SIZE * FINE, SIZE * FINE), background)
    pen = ImageDraw.Draw(image)
    for where, colour in state:
        if isinstance(where, tuple):
            x, y, r = (FINE * value for value in where)
            pen.ellipse([x - r, y - r, x + r, y + r], fill=colour)
        else:
            pen.polygon([(round(FINE * x), round(FINE * y)) for x, y in where], fill=colour)
    return image.resize((SIZE, SIZE), Image.Resampling.NEAREST)


def tinted(background, rng: random.Random) -> tuple[int, int, int]:
    """The background with each channel shifted by up to TINT levels."""
    return tuple(min(255, max(0, c + rng.randint(-TINT, TINT))) for c in background)
