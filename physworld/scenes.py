"""Every question kind of physworld, and how a scene with a wanted answer is found: propose, simulate, reject.

The answer of a scene is what the SIMULATOR says, never what was wanted or proposed. A scene is kept only if the same
answer comes out at half the time step and when each of its margin parameters is shifted both ways: no label hangs on
a hair, or on rounding.
"""

import random
from dataclasses import dataclass
from typing import Callable

from physworld import acting, seeing
from physworld.world import COLOURS, DT, look

TRIES = 200                  # proposals before a scene is given up as impossible


@dataclass(frozen=True)
class Kind:
    """One kind of question.

    questions: two wordings that say the same; answers: all that can be right, equally often; options: whether they
    are offered with letters ("all": all of them; "seen": the colours in the scene; "": none); margins: parameter ->
    shift (in its unit) that must not change the answer; sample, simulate, facts: see seeing.py.
    """
    suite: str
    questions: tuple[str, str]
    answers: tuple[str, ...]
    options: str
    margins: dict[str, float]
    sample: Callable
    simulate: Callable
    facts: Callable


@dataclass(frozen=True)
class Scene:
    """A found scene: its parameters, the simulator's answer in words, and three states for the painter."""
    kind: str
    params: dict
    answer: str
    film: list


YES_NO = ("yes", "no")


def kind(module, name: str, suite: str, questions, answers, options: str, margins) -> Kind:
    """The Kind whose functions in `module` end in `name`."""
    return Kind(suite, questions, answers, options, margins, getattr(module, f"sample_{name}"),
                getattr(module, f"simulate_{name}"), getattr(module, f"facts_{name}"))


KINDS = {
    "leftmost": kind(seeing, "leftmost", "perception", (
        "Which block ends up furthest to the left?", "What is the colour of the leftmost block at the end?"),
        tuple(COLOURS), "", {"push": 4}),
    "highest": kind(seeing, "highest", "perception", (
        "Which block ends up on top?", "What is the colour of the highest block at the end?"),
        tuple(COLOURS), "", {"push": 2}),
    "gap": kind(seeing, "gap", "causal", (
        "Does the ball clear the gap?", "Will the ball get across the gap?"), YES_NO, "", {"speed": 10, "gap": 2}),
    "tower": kind(seeing, "tower", "causal", (
        "Does the tower stand when the red block is taken away?",
        "If the red block is removed, will the tower still stand?"), YES_NO, "", {"weight": 2}),
    "fits": kind(seeing, "fits", "affordance", (
        "Does the block fit the gripper?", "Can the gripper close around the block?"), YES_NO, "",
        {"width": 2, "aim": 0.8}),
    "which_fits": kind(seeing, "which_fits", "affordance", (
        "Which block fits the gripper?", "Which block can the gripper take?"), tuple(COLOURS), "seen", {"grow": 1}),
    "next_action": kind(acting, "next_action", "planning", (
        "What should the robot do next so that the block reaches the goal?",
        "Which action brings the block to the goal?"),
        ("push left", "push right", "lift", "wait"), "all", {"aim": 2}),
    "placement": kind(acting, "placement", "failure", (
        "Did the placement succeed?", "Does the block end up on the shelf?"), YES_NO, "", {"offset": 3}),
    "slip": kind(acting, "slip", "failure", (
        "What happens to the block on the tray?", "How does the block on the tray end up?"),
        ("stays", "falls left", "falls right"), "all", {"tilt": 0.02}),
    "what_to_do": kind(acting, "what_to_do", "driving", (
        "What should the blue car do?", "Which manoeuvre should the blue car choose?"),
        ("keep going", "brake", "steer left", "steer right"), "all", {"distance": 2, "speed": 3}),
}
SUITES = {suite: [name for name, k in KINDS.items() if k.suite == suite]
          for suite in ("perception", "causal", "affordance", "planning", "failure", "driving")}


def decide(name: str, params: dict, dt: float = DT) -> str:
    """The simulator's answer (words) for a scene at time step `dt` (s), or "" where it is too close to call."""
    return KINDS[name].simulate(params, dt)[0]


def holds(name: str, params: dict, answer: str) -> bool:
    """Whether the answer stays the same at half the time step, and with each margin parameter shifted down and up."""
    return decide(name, params, DT / 2) == answer and all(decide(name, {**params, key: params[key] + sign * shift}) == answer
               for key, shift in KINDS[name].margins.items() for sign in (-1, 1))


def find_scene(name: str, rng: random.Random, ood: bool = False) -> Scene:
    """Draw the wanted answer, then propose scenes until the simulator gives it with room to spare.

    Raises RuntimeError after TRIES proposals.
    """
    wanted = rng.choice(KINDS[name].answers)
    for _ in range(TRIES):
        params = look(rng, ood)
        KINDS[name].sample(rng, wanted, params)
        answer, world = KINDS[name].simulate(params, DT)
        if answer == wanted and holds(name, params, answer):
            return Scene(name, params, answer, world.film)
    raise RuntimeError(f"{name}: no scene with the answer {wanted!r} in {TRIES} proposals (ood={ood})")
