"""physworld clips: splits, ids, and writing them to disk.

    python -m physworld.clips --split train --n 800 --out runs/physworld            # about 5 s on two cores
    python -m physworld.clips --split ood --n 600 --out runs/physworld --seed 1

Writes <out>/<split>/questions.jsonl (one question record a line) and <out>/<split>/frames/*.png. May be killed at any
time: the same command carries on. A clip follows from (seed, split, index) alone and belongs to one split only: the
hash of its pixels says to which, and the background's tint is redrawn until that is the split asked for.
"""

import argparse
import functools
import hashlib
import json
import multiprocessing
import os
import random
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from tqdm import tqdm

from physworld.scenes import KINDS, SUITES, Scene, find_scene
from physworld.world import SIZE, paint, tinted

SPLITS = ("base", "train", "pairs", "test", "ood")
WORLD_VERSION = 1            # goes up whenever the same (seed, split, index) would give another clip
TINT_TRIES = 200             # redraws of the background; each fits with probability 1/5
FRAME_RATE = 4               # frames per second of a written video


@dataclass(frozen=True)
class Clip:
    """A question about three 56x56 RGB frames; `answer` is a letter of `options`, or words where there are none."""
    id: str
    suite: str
    kind: str
    question: str
    options: dict[str, str] | None
    answer: str
    frames: list[Image.Image]
    facts: dict[str, str]


def kind_of(index: int) -> str:
    """Question kind of an index: the six suites in turn, the kinds of a suite in turn."""
    kinds = list(SUITES.values())[index % len(SUITES)]
    return kinds[index // len(SUITES) % len(kinds)]


def scene_of(split: str, index: int, seed: int = 0) -> tuple[Scene, random.Random]:
    """The simulated scene of a clip, and the generator that draws the rest (tint, wording, order of options)."""
    if split not in SPLITS or index < 0:
        raise ValueError(f"no clip {split!r} {index}: split is one of {', '.join(SPLITS)}, index at least 0")
    rng = random.Random(f"{seed}/{split}/{index}")
    return find_scene(kind_of(index), rng, ood=split == "ood"), rng


def frames_hash(frames: list[Image.Image]) -> str:
    """SHA-256 of the pixels of all frames, in hex."""
    return hashlib.sha256(b"".join(frame.tobytes() for frame in frames)).hexdigest()


def paint_for(split: str, scene: Scene, rng: random.Random) -> list[Image.Image]:
    """The scene's frames, tinted so that their hash belongs to `split`: no picture can be in two splits."""
    for _ in range(TINT_TRIES):
        background = tinted(scene.params["background"], rng)
        frames = [paint(state, background) for state in scene.film]
        if int(frames_hash(frames), 16) % len(SPLITS) == SPLITS.index(split):
            return frames
    raise RuntimeError(f"{scene.kind}: no tint for split {split} in {TINT_TRIES} draws")


def options_of(scene: Scene, rng: random.Random) -> dict[str, str] | None:
    """The options in random order under A, B, ..., or None for a kind without."""
    kind = KINDS[scene.kind]
    if not kind.options:
        return None
    texts = list(kind.answers) if kind.options == "all" else sorted(scene.params["colours"])
    rng.shuffle(texts)
    return dict(zip("ABCD", texts))


def make_clip(split: str, index: int, seed: int = 0) -> Clip:
    """Clip number `index` of a split. Raises ValueError for an unknown split, RuntimeError if no scene is found."""
    scene, rng = scene_of(split, index, seed)
    kind = KINDS[scene.kind]
    frames, question, options = paint_for(split, scene, rng), rng.choice(kind.questions), options_of(scene, rng)
    answer = next(letter for letter, text in options.items() if text == scene.answer) if options else scene.answer
    return Clip(f"{split}-{index:06d}", kind.suite, scene.kind, question, options, answer, frames,
                kind.facts(scene.params))


def answer_text(clip: Clip) -> str:
    """The right answer in words: the option's text, or the answer itself."""
    return clip.options[clip.answer] if clip.options else clip.answer


# ---- disk ----

def write_clip(index: int, split: str, folder: Path, seed: int) -> dict:
    """Write one clip's frames as PNG below `folder`; returns its question record."""
    clip = make_clip(split, index, seed)
    names = [f"frames/{clip.id}_{i}.png" for i in range(len(clip.frames))]
    for name, frame in zip(names, clip.frames):
        frame.save(folder / name)
    return {"id": clip.id, "suite": clip.suite, "kind": clip.kind, "question": clip.question, "options": clip.options,
            "frames": names, "answer": clip.answer, "facts": clip.facts}


def whole_rows(path: Path) -> dict[str, dict]:
    """id -> record of every whole line of a JSONL file that may be absent or cut off at its end."""
    rows = {}
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        record = json.loads(line)
        rows[record["id"]] = record
    return rows


def save_rows(rows: dict[str, dict], path: Path) -> None:
    """Write the records in the order of their ids, all or nothing."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))
    os.replace(fresh, path)


def check_same_world(folder: Path, seed: int) -> None:
    """Raise ValueError where `folder` holds clips of another seed or of an older physworld."""
    path, mine = folder / "made_with.json", {"seed": seed, "world_version": WORLD_VERSION}
    if path.exists() and json.loads(path.read_text()) != mine:
        raise ValueError(f"{folder} holds clips made with {path.read_text().strip()}, not {json.dumps(mine)}: "
                         f"delete it or choose another --out")
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(mine) + "\n")
    os.replace(fresh, path)


def write_split(split: str, n: int, out: str | Path, seed: int = 0, workers: int = 2) -> Path:
    """Have at least the first `n` clips of a split under <out>/<split>; returns the path of its questions.jsonl.

    Rows already written are kept, so a killed call carries on. Raises ValueError for an unknown split, n < 1, or a
    folder of another seed.
    """
    if split not in SPLITS or n < 1:
        raise ValueError(f"cannot write {n} clips of {split!r}: split is one of {', '.join(SPLITS)}, n at least 1")
    folder = Path(out) / split
    (folder / "frames").mkdir(parents=True, exist_ok=True)
    check_same_world(folder, seed)
    done, part = folder / "questions.jsonl", folder / "questions.part"
    rows = whole_rows(done) | whole_rows(part)
    missing = [i for i in range(n) if f"{split}-{i:06d}" not in rows]
    if missing:
        save_rows(rows, part)                                     # drops a line that a kill cut off
        rows |= write_missing(missing, split, folder, seed, workers)
    if missing or part.exists():
        save_rows(rows, done)
        part.unlink(missing_ok=True)
    return done


def write_missing(missing: list[int], split: str, folder: Path, seed: int, workers: int) -> dict[str, dict]:
    """Write the clips of these indices with `workers` processes, each row appended as soon as its frames are there."""
    job, rows = functools.partial(write_clip, split=split, folder=folder, seed=seed), {}
    with multiprocessing.Pool(workers) as pool, open(folder / "questions.part", "a") as part:
        made = pool.imap_unordered(job, missing, chunksize=4)
        for record in tqdm(made, total=len(missing), desc=f"physworld {split}", unit="clip"):
            part.write(json.dumps(record) + "\n")
            part.flush()
            rows[record["id"]] = record
    return rows


def write_video(clip: Clip, path: str | Path) -> None:
    """Write the clip's frames as an mp4 (H.264, 4 frames a second), 56x56 px."""
    import av
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for frame in clip.frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", required=True, choices=SPLITS, help="which split to write")
    parser.add_argument("--n", type=int, required=True, help="number of clips")
    parser.add_argument("--out", required=True, help="folder; the clips go to <out>/<split>")
    parser.add_argument("--seed", type=int, default=0, help="seed of all splits (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    args = parser.parse_args()
    print(write_split(args.split, args.n, args.out, args.seed, args.workers))


if __name__ == "__main__":
    main()
