"""Local files of the embedded default: clips drawn when they are first asked for, responses committed as text.

    questions_file("train")  -> runs/physworld/train/questions.jsonl       questions of stage 1
    pairs_file("pairs")      -> runs/physworld/pairs/pairs.jsonl           pairs of stage 2
    questions_file / pairs_file("test" | "ood")                            what is evaluated

A pair's question is a clip made from its id; its two responses were sampled once, when the base was made
(physworld/make_base.py), and lie in physworld/pairs/<split>.jsonl.
"""

import json
import os
from pathlib import Path

from physworld.clips import write_split

SEED = 1  # of the clips; those of seed 0 and 2 were looked at while the base and the settings were chosen
SIZES = {"train": 1600, "pairs": 3200, "test": 2000, "ood": 1000}
RESPONSES = Path(__file__).parent / "pairs"
ROOT = Path(__file__).parent.parent / "runs" / "physworld"


def questions_file(split, n=None, root=ROOT):
    """Path of the split's questions; draws the first `n` clips (default SIZES[split]) where they are not there yet."""
    n = n or SIZES[split]
    write_split(split, n, root, SEED)
    return Path(root) / split / "questions.jsonl"


def pairs_file(split, n=None, root=ROOT):
    """Path of the split's pairs: committed responses joined with the clips they speak of.

    Raises ValueError where the simulator here gives a clip another answer than the one the responses were labelled by.
    """
    questions = {}
    with questions_file(split, n, root).open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            questions[record["id"]] = record
    path = Path(root) / split / "pairs.jsonl"
    rows = []
    with (RESPONSES / f"{split}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            question = questions.get(pair["id"])
            if question is None:
                continue
            if question["answer"] != pair["answer"]:
                raise ValueError(
                    f"{pair['id']}: the simulator answers {question['answer']!r} here, and {pair['answer']!r} where the "
                    "responses were labelled; install the pymunk of requirements.txt, or run physworld/make_base.py"
                )
            rows.append(json.dumps(question | pair))
    temporary = path.with_suffix(f".{os.getpid()}.tmp")  # two runs may make it at once
    temporary.write_text("\n".join(rows) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path
