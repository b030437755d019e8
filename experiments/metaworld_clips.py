"""Clips of a robot simulator that nobody here made, and questions whose answers it knows.

    bash experiments/metaworld.sh                                                 the whole path, from installation to record
    python -m experiments.metaworld_clips film --out runs/metaworld               needs metaworld (see metaworld.sh)
    python -m experiments.metaworld_clips record --out runs/metaworld --record experiments/<date>_metaworld

Meta-World (Yu et al. 2019; PyPI metaworld, MIT licence) has 50 tasks of a robot arm, an expert for each and a success flag.
`film` plays experts to the end (success), stops them before (partial: the object has moved; stopped: it has not) or takes
them off course (perturbed), and keeps four frames of each as an mp4. Five suites of questions: did it succeed, what
happened first, is the gripper holding the object, which frame is closer to done, what comes next. Clips with seeds below
TEST_SEED are for training, the others for the benchmark. `record` counts what the path made of them.
"""

import argparse
import itertools
import json
import os
import random
from collections import Counter
from pathlib import Path

import av
from PIL import Image
from tqdm import tqdm

TASKS = {  # name in Meta-World: (what the robot is to do, the object)
    "pick-place-v3": ("put the puck at the goal", "puck"),
    "push-v3": ("push the puck to the goal", "puck"),
    "basketball-v3": ("put the ball into the basket", "ball"),
    "bin-picking-v3": ("put the cube into the other bin", "cube"),
    "shelf-place-v3": ("put the block onto the shelf", "block"),
    "peg-insert-side-v3": ("put the peg into the hole", "peg"),
    "sweep-into-v3": ("sweep the cube into the hole", "cube"),
    "door-open-v3": ("open the door", "door"),
    "drawer-open-v3": ("open the drawer", "drawer"),
    "drawer-close-v3": ("close the drawer", "drawer"),
    "button-press-v3": ("press the button", "button"),
    "window-open-v3": ("open the window", "window"),
    "plate-slide-v3": ("slide the plate into the goal", "plate"),
    "faucet-open-v3": ("turn the faucet", "faucet"),
}
KINDS = ("success", "partial", "stopped", "perturbed")
SEEDS, TEST_SEED = (0, 1), 1
FRAMES = 4
LONGEST = 250  # steps that an expert may take
MOVED = 0.02  # metres from where the object is said to have moved


# --- what the simulator knows: pure functions of a log, one {success, holding, moved, remaining, height, opening} a step ---


def first_step(log, true):
    """The first step for which `true(row)`, or None."""
    return next((step for step, row in enumerate(log) if true(row)), None)


def cut_of(kind, log):
    """The last step of a clip of this kind, from the log of the expert's whole run; None where it has no such step.

    >>> log = [{"success": step >= 9, "moved": 0.01 * step} for step in range(12)]
    >>> [cut_of(kind, log) for kind in ("success", "partial", "stopped")]
    [11, 6, 1]
    """
    done, moved = first_step(log, lambda row: row["success"]), first_step(log, lambda row: row["moved"] > MOVED)
    if done is None:
        return None
    if kind == "success":
        return len(log) - 1
    moved = done // 2 if moved is None or moved >= done else moved
    step = moved + (done - moved) // 2 if kind in ("partial", "perturbed") else moved // 2
    return step if 0 < step < done else None


def events(log, thing):
    """(step, what happened) in order of time: the hand sank or rose, the gripper closed, the object moved."""
    found = [
        (first_step(log, lambda row: row["height"] < log[0]["height"] - 0.05), "the hand went down"),
        (first_step(log, lambda row: row["opening"] < 0.6 * log[0]["opening"]), "the gripper closed"),
        (first_step(log, lambda row: row["moved"] > MOVED), f"the {thing} moved"),
    ]
    return sorted((step, what) for step, what in found if step)


def lettered(rng, right, wrong):
    """({"A": .., "B": ..}, letter of the right one), in an order drawn by `rng`."""
    texts = [right, *wrong]
    rng.shuffle(texts)
    options = dict(zip("ABCDEFGH", texts))
    return options, next(letter for letter, text in options.items() if text == right)


def questions_of(clip):
    """Question records of a clip {"id", "task", "log", "steps"}; `steps` are the log's steps that its frames show.

    A question is asked only where the answer is beyond doubt: events a frame apart, progress that differs by a quarter.
    """
    (goal, thing), log, steps = TASKS[clip["task"]], clip["log"], clip["steps"]
    last, rng, asked = log[-1], random.Random(clip["id"]), []

    def ask(suite, question, answer, options=None):
        asked.append({
            "id": f"{clip['id']}-{suite}", "suite": f"metaworld_{suite}", "question": question, "options": options,
            "video": f"clips/{clip['id']}.mp4", "answer": answer,
        })  # fmt: skip

    ask("success", f"Did the robot {goal}?", "yes" if last["success"] else "no")
    if last["holding"] or last["moved"] > MOVED or last["opening"] > 0.9 * log[0]["opening"]:
        ask("holding", f"Is the gripper holding the {thing} in the last frame?", "yes" if last["holding"] else "no")
    happened = [(a, b) for a, b in itertools.combinations(events(log, thing), 2) if b[0] - a[0] >= len(log) / FRAMES]
    if happened:
        (_, first), (_, second) = rng.choice(happened)
        options, letter = lettered(rng, first, [second])
        ask("first", "What happened first?", letter, options)
    remaining = [log[step]["remaining"] for step in steps]
    margin = max(0.25 * max(remaining), 0.01)
    apart = [(i, j) for i in range(FRAMES) for j in range(i) if abs(remaining[i] - remaining[j]) > margin]
    if apart:
        i, j = rng.choice(apart)
        nearer, other = (i, j) if remaining[i] < remaining[j] else (j, i)
        options, letter = lettered(rng, f"frame {nearer + 1}", [f"frame {other + 1}"])
        ask("closer", f"The robot has to {goal}. In which frame is it closer to that?", letter, options)
    nexts = ["nothing, it is done", f"bring the {thing} on to its goal", f"go to the {thing}"]
    right = nexts[0] if last["success"] else nexts[1] if last["holding"] or last["moved"] > MOVED else nexts[2]
    options, letter = lettered(rng, right, [text for text in nexts if text != right])
    ask("next", f"The robot has to {goal}. What has to come next?", letter, options)
    return asked


# --- filming ----------------------------------------------------------------------------------------------------------


class Scene:
    """A task with its expert and a camera. One serves all clips of the task: making it costs more than a clip."""

    def __init__(self, task, size):
        import mujoco
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        from metaworld.policies import ENV_POLICY_MAP

        self.env = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-goal-observable"](seed=0)
        self.expert, self.mujoco = ENV_POLICY_MAP[task](), mujoco
        self.env.model.camera("corner2").pos[:] = 0.75, 0.075, 0.7  # nearer to the table than it comes
        self.renderer = mujoco.Renderer(self.env.model, size, size)

    def reset(self, seed):
        """Begin again; the seed decides where the objects are."""
        self.env._freeze_rand_vec, self.env.seeded_rand_vec = False, True  # else places are the first reset's, or global
        self.env.seed(seed)
        self.seen, _ = self.env.reset()
        self.start = None

    def step(self, action=None):
        """Act (None: as the expert does) and return the log's row."""
        import numpy as np

        action = self.expert.get_action(self.seen) if action is None else action
        self.seen, *_, info = self.env.step(np.clip(action, -1, 1))
        place = self.env._get_pos_objects()[:3]
        self.start = place.copy() if self.start is None else self.start  # after one step: a reset leaves some objects unsettled
        return {
            "success": bool(info["success"]), "holding": self.holding(), "remaining": float(info["obj_to_target"]),
            "moved": float(np.linalg.norm(place - self.start)),
            "height": float(self.env.tcp_center[2]), "opening": float(self.seen[3]),
        }  # fmt: skip

    def holding(self):
        """Do both fingers touch one and the same body?"""
        touched = []
        for pad in ("leftpad_geom", "rightpad_geom"):
            geom = self.env.data.geom(pad).id
            others = [sum(c.geom) - geom for c in self.env.data.contact if geom in c.geom]
            touched.append({int(self.env.model.geom_bodyid[other]) for other in others} - {0})
        return bool(touched[0] & touched[1])

    def picture(self):
        """An RGB image; the camera hangs upside down. Shadows cost a second a frame without a GPU."""
        self.renderer.update_scene(self.env.data, camera="corner2")
        for flag in (self.mujoco.mjtRndFlag.mjRND_SHADOW, self.mujoco.mjtRndFlag.mjRND_REFLECTION):
            self.renderer.scene.flags[flag] = 0
        return self.renderer.render()[::-1, ::-1].copy()


def play(scene, kind, seed, rng):
    """(log, steps that are shown, pictures of them, None), or (.., .., .., why there is no such clip).

    The expert runs twice: once to know how long it takes, once for the camera.
    """
    log = []
    scene.reset(seed)
    while len(log) < LONGEST and sum(row["success"] for row in log) < 5:
        log.append(scene.step())
    end = cut_of(kind, log)
    if end is None:
        return log, [], [], "the expert did not succeed" if not any(row["success"] for row in log) else f"no moment for {kind}"
    log, pictures = [], []
    scene.reset(seed)
    away = [rng.uniform(-1, 1), rng.uniform(-1, 0), rng.uniform(0.3, 1), -1.0]  # backwards and up, gripper open
    length = end + 1 + (25 if kind == "perturbed" else 0)
    shown = [round(i * (length - 1) / (FRAMES - 1)) for i in range(FRAMES)]
    for step in range(length):
        log.append(scene.step(away if step > end else None))
        if step in shown:
            pictures.append(scene.picture())
    succeeded = log[-1]["success"]
    return log, shown, pictures, None if succeeded == (kind == "success") else f"{kind}, but success is {succeeded}"


def write_clip(path, pictures):
    """An mp4 of the pictures, (H, W, 3) uint8 each, whole or not at all; constant quality, one key frame."""
    temporary = path.with_suffix(".tmp.mp4")
    with av.open(str(temporary), "w") as container:
        stream = container.add_stream("libx264", rate=4, options={"crf": "23"})
        stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    temporary.replace(path)


def film(args):
    """All clips that are not there yet, then train.jsonl and test.jsonl, and film.json with the counts."""
    os.environ.setdefault("MUJOCO_GL", "osmesa")
    (args.out / "clips").mkdir(parents=True, exist_ok=True)
    wanted = [(task, kind, seed) for task in args.tasks for seed in SEEDS for kind in KINDS]
    clips, rejected, scene, staged = [], Counter(), None, None
    for task, kind, seed in tqdm(wanted, desc="metaworld", unit="clip"):
        name = f"{task.removesuffix('-v3')}-{kind}-{seed}"
        path = args.out / "clips" / f"{name}.json"
        if not path.exists():
            if staged != task:
                if scene:
                    scene.renderer.close()  # a second one beside it would draw noise
                scene, staged = Scene(task, args.size), task
            log, steps, pictures, why = play(scene, kind, seed * len(KINDS) + KINDS.index(kind), random.Random(name))
            if why is None:
                write_clip(path.with_suffix(".mp4"), pictures)
            clip = {"id": name, "task": task, "kind": kind, "seed": seed, "rejected": why, "steps": steps, "log": log}
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(clip))
            temporary.replace(path)
        clip = json.loads(path.read_text())
        if clip["rejected"]:
            rejected[f"{task}: {clip['rejected']}"] += 1
        else:
            clips.append(clip)
    counts = {"clips": dict(Counter(clip["kind"] for clip in clips)), "tasks": len({clip["task"] for clip in clips})}
    counts["rejected clips"] = dict(rejected)
    for split in ("train", "test"):
        records = [record for clip in clips if (clip["seed"] >= TEST_SEED) == (split == "test") for record in questions_of(clip)]
        (args.out / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        counts[f"{split} questions"] = dict(Counter(record["suite"] for record in records))
    (args.out / "film.json").write_text(json.dumps(counts, indent=1) + "\n")
    print(json.dumps(counts, indent=1))


# --- record -----------------------------------------------------------------------------------------------------------


def contact_sheet(folder, path, tile=48):
    """A PNG: a row a task, and of its first clip of each kind the first, a middle and the last frame."""
    import data

    rows = []
    for task in TASKS:
        shown = []
        for kind in KINDS:
            files = [folder / "clips" / f"{task.removesuffix('-v3')}-{kind}-{seed}.mp4" for seed in SEEDS]
            file = next((file for file in files if file.exists()), None)
            shown += data.video_frames(file, count=3)[0] if file else [Image.new("RGB", (tile, tile), "white")] * 3
        rows.append(shown)
    sheet = Image.new("RGB", (tile * len(rows[0]), tile * len(rows)))
    for y, shown in enumerate(rows):
        for x, image in enumerate(shown):
            sheet.paste(image.resize((tile, tile)), (x * tile, y * tile))
    sheet.quantize(96).save(path, optimize=True)


def record(args):
    """counts.json, summary.json with the headline's entry, contact_sheet.png, the benchmark's card and README.md."""
    read = lambda name: json.loads((args.out / name).read_text())  # noqa: E731
    made = {"training": read("train/pairs.json"), "benchmark": read("bench/benchmark.json")}
    verified = {split: read(f"{split}/verify.json") for split in ("train", "bench")}
    judged = read("judge.json")
    counts = {"film": read("film.json")}
    for split, found in verified.items():
        counts[f"{split} responses"] = {name: count for name, count in found.items() if isinstance(count, int)}
    counts |= {f"{name} pairs": result["counts"] for name, result in made.items()}
    counts["benchmark judged by the tiny model"] = {name: judged[name] for name in ("accuracy", "consistency", "unreadable")}
    pairs, questions = (sum(result["counts"][what] for result in made.values()) for what in ("pairs", "questions"))
    command = "bash experiments/metaworld.sh"
    entry = {"value": pairs, "low": pairs, "high": pairs, "n": questions, "unit": "pairs (a count; n questions)"}
    entry |= {"command": command, "record": str(args.record), "commit": made["benchmark"]["commit"]}
    args.record.mkdir(parents=True, exist_ok=True)
    for name, what in (("counts.json", counts), ("summary.json", {"headline": {"metaworld_pairs": entry}})):
        (args.record / name).write_text(json.dumps(what, indent=1) + "\n")
    contact_sheet(args.out, args.record / "contact_sheet.png")
    (args.record / "card.md").write_text((args.out / "bench" / "card.md").read_text())
    accuracy = judged["accuracy"]
    lines = [
        "# From a robot simulator's clips to a judged benchmark", "",
        "Claim: the path clips, questions, responses, verify, pairs, benchmark, evaluate runs on "
        f"{sum(counts['film']['clips'].values())} Meta-World clips of {counts['film']['tasks']} tasks, with the tiny model as "
        f"policy and judge: {pairs} pairs from {questions} questions.", "",
        f"The tiny model was taught on another world; its judge accuracy here is {100 * accuracy['value']:.1f}% "
        f"[{100 * accuracy['low']:.1f}, {100 * accuracy['high']:.1f}], n {accuracy['n']}: the path is shown, not a skill.", "",
        f"Command: `{command}`; commit {entry['commit']}; machine: {judged['machine']}.", "",
        "counts.json: every count and reason. contact_sheet.png: a row a task; first, middle and last frame of success, "
        "partial, stopped, perturbed.", "",
    ]  # fmt: skip
    (args.record / "README.md").write_text("\n".join(lines))
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("film", "record"))
    parser.add_argument("--out", type=Path, default=Path("runs/metaworld"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK", help="fewer, for a trial")
    parser.add_argument("--size", type=int, default=112, help="width and height of a clip in pixels")
    parser.add_argument("--record", type=Path, help="the record's folder, for the step record")
    arguments = parser.parse_args()
    {"film": film, "record": record}[arguments.step](arguments)
