"""Public data sets as records (data/records.py): read a local path or a hub id, convert it, tell what was kept and what was not.

    python -m data.sources --source cosmos_reason1 --mode question --dataset /data/Cosmos-Reason1-Benchmark --out runs/data/cosmos
    python -m data.sources --source vl_rewardbench --mode judge --dataset MMInstruction/VL-RewardBench --out runs/data/vlrb
    python train_stage1.py --dataset runs/data/cosmos/records.jsonl        # evaluate.py takes --source itself

Rows stream from JSONL, JSON, CSV or parquet into <out>/records.jsonl; pictures that a row carries as bytes are written to
<out>/images. A row that cannot be used is rejected with its reason and counted. More than 1% rejected is an error unless
allowed. A column that is not there, or a cut line, ends the conversion: then it is another data set, or a broken file.
A record takes from a row what a prompt may show, the label, and its place; nothing else. docs/data.md tells where each set
comes from, its licence, and what has to be fetched by hand.
"""

import json
import os
import re
from pathlib import Path

from tqdm import tqdm

from data import command
from data.files import RecordError, json_sha
from data.records import check_record
from data.source_files import Counts, Media, Rejected, locate, read_rows, table_files

TOLERATED = 0.01  # share of rejected rows beyond which a conversion fails


# ---------------------------------------------------------------------------------------------------------------------
# One function for each source: row -> record. `number` and checks are added by kept().


def text_of(value, reason):
    """The text, stripped; Rejected with the reason where there is none."""
    if not isinstance(value, str) or not value.strip():
        raise Rejected(reason, repr(value))
    return value.strip()


def lettered(choices):
    """{"A": first choice, ...} without the absent ones, of a list or of letters with texts.

    >>> lettered(["left", None]), lettered({"A": "yes", "B": "no", "C": None})
    ({'A': 'left'}, {'A': 'yes', 'B': 'no'})
    """
    if isinstance(choices, list):
        choices = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", choices))
    return {letter: str(text) for letter, text in choices.items() if text is not None and str(text).strip()}


def letter_of(answer, options):
    """The answer as a letter of the options, of "B", "(B)", "b." or a place from 0; raises Rejected."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        answer = "ABCDEFGHIJ"[answer] if 0 <= answer < 10 else ""
    found = re.fullmatch(r"\(?([A-Za-z])\)?[.:]?", text_of(answer, "no answer"))
    if not found:
        raise Rejected("the answer is no letter", answer)
    if len(options) < 2:
        raise Rejected("fewer than two options", options)
    if found[1].upper() not in options:
        raise Rejected("the answer's letter has no option", f"{answer} of {list(options)}")
    return found[1].upper()


def cosmos_reason1(row, media):
    """nvidia/Cosmos-Reason1-RL-Dataset and -Benchmark: `video, qa_pairs{question, index2ans, answer or correct_answer}`.

    The suite is the config, read off the paths. From memory, not checked: qa_pairs may be a list.
    """
    qa, video = row["qa_pairs"], row["video"]
    if not isinstance(qa, dict) or not {"question", "index2ans"} <= qa.keys() or not {"answer", "correct_answer"} & qa.keys():
        raise Rejected("qa_pairs lacks question, index2ans or answer", qa)
    options = lettered(qa["index2ans"])
    answer = qa.get("correct_answer") if qa.get("answer") is None else qa["answer"]
    names = f"{media.here.name} {media.here.parent.name} {video}".lower()
    suite = next((config for config in ("robovqa", "bridgev2", "agibot", "holoassist", "robofail") if config in names), "other")
    question = text_of(qa["question"], "no question")
    return {
        "id": f"{suite}/{Path(str(video)).stem}/{json_sha(question, options)[:8]}", "suite": suite, "question": question,
        "options": options, "answer": letter_of(answer, options), "video": media.video(video),
    }  # fmt: skip


def cv_bench(row, media):
    """nyu-visionx/CV-Bench: `idx, task, image, question, choices, answer "(A)", source`; the suite is the source."""
    options = lettered(row["choices"])
    picture = row.get("image") or row["filename"]
    if isinstance(picture, str) and not media.beside(picture):
        picture = f"img/{picture}"
    return {
        "id": f"cv/{row['idx']}", "suite": text_of(row["source"], "no source"), "task": row["task"],
        "question": text_of(row["question"], "no question"), "options": options, "answer": letter_of(row["answer"], options),
        "frames": [media.image(picture)],
    }  # fmt: skip


def egoplan_bench2(row, media):
    """EgoPlan-Bench2: `sample_id, domain, task_goal, choice_a..d, golden_choice_idx` and two frame numbers.

    The clip is Ego4D's, named by what stands before the last underscore of sample_id; the frames from the task's start to
    the current observation count. `answer` and task_progress_metadata tell the answer and are not read.
    """
    options = lettered([row[f"choice_{letter}"] for letter in "abcd"])
    span = [row["task_start_frame"], row["current_observation_frame"]]
    if not all(isinstance(frame, int) for frame in span) or not 0 <= span[0] <= span[1]:
        raise Rejected("its frames are no span", span)
    goal = text_of(row["task_goal"], "no goal").rstrip(".")
    return {
        "id": f"egoplan/{row['sample_id']}", "suite": text_of(row["domain"], "no domain"),
        "question": f"The last frame is what I see now. Given the progress so far, which action comes next in order to {goal}?",
        "options": options, "answer": letter_of(row["golden_choice_idx"], options),
        "video": media.video(row["sample_id"].rpartition("_")[0] + ".mp4"), "span": span,
    }  # fmt: skip


def lingoqa(row, media):
    """LingoQA: `question_id, segment_id, question, answer`, a row a reference (two a question), merged by references().

    Frames lie in a folder named by the segment, or are listed under `images`; from memory, not checked.
    """
    frames = [media.image(name) for name in row["images"]] if row.get("images") else media.frames(row["segment_id"])
    return {
        "id": f"{row['segment_id']}/{row['question_id']}", "suite": "lingoqa", "options": None, "frames": frames,
        "question": text_of(row["question"], "no question"), "answer": text_of(row["answer"], "no answer"),
    }  # fmt: skip


def roboreward(row, media):
    """teetone/RoboReward: `file_name, task, reward 1..5`; the suite is the file's first folder (the robot corpus).

    gpt5_mini_check says the label and is not read. One clip may stand under several tasks. The rubric's wording is ours.
    """
    name, task = text_of(row["file_name"], "names no video"), text_of(row["task"], "no task").rstrip(".")
    reward = str(row["reward"]).removesuffix(".0")
    if reward not in "12345" or len(reward) != 1:
        raise Rejected("the reward is not 1 to 5", row["reward"])
    return {
        "id": f"{name}/{json_sha(task)[:8]}", "suite": name.split("/")[0] if "/" in name else "roboreward", "task": task,
        "question": f"A robot was told: {task}. How far has it come at the end of the clip? Answer with a number from 1 "
        "(nothing of the task is done) to 5 (the task is done completely).",
        "options": None, "answer": reward, "video": media.video(name),
    }  # fmt: skip


def responses(first, second):
    """The fields of two responses, in the source's order; raises Rejected where one is empty or both are the same."""
    pair = [text_of(text, "a response is empty") for text in (first, second)]
    if pair[0] == pair[1]:
        raise Rejected("both responses are the same text")
    shown = {"response_1": pair[0], "response_2": pair[1], "source_1": "unknown", "source_2": "unknown"}
    return shown | {"answer": None, "options": None}


def vl_rewardbench(row, media):
    """MMInstruction/VL-RewardBench: `id, query, response[2], image, human_ranking[2]`; [0, 1]: the first is preferred."""
    ranking, both = row["human_ranking"], row["response"]
    if len(both) != 2 or sorted(ranking) != [0, 1]:
        raise Rejected("does not rank one of two responses first", f"{len(both)} responses, ranking {ranking}")
    name = text_of(row["id"], "no id")
    groups = {"hallucination": ("rlaif", "rlhf", "hallucination"), "reasoning": ("mathverse", "mmmu")}
    suite = next((group for group, starts in groups.items() if name.lower().startswith(starts)), "general")
    query = text_of(re.sub(r"<image>\n?", "", row["query"] or ""), "no question")
    return responses(*both) | {
        "id": f"{name}/{json_sha(query, both)[:8]}", "suite": suite, "question": query, "frames": [media.image(row["image"])],
        "preference": 1 + ranking.index(0),
    }  # fmt: skip


def multimodal_rewardbench(row, media):
    """Multimodal RewardBench: `ID, Text, Image, Output1, Output2, Better, Category`; suites as its script splits them."""
    better, name, suite = row["Better"], text_of(row["ID"], "no id"), text_of(row["Category"], "no category")
    if better not in ("Output1", "Output2"):
        raise Rejected("Better is neither Output1 nor Output2", better)
    if suite == "safety":
        suite += "/bias" if name.lower().startswith("pairs") else "/toxicity"
    elif suite == "reasoning":
        suite += "/math" if name.lower().startswith("math") else "/coding"
    both = row["Output1"], row["Output2"]
    return responses(*both) | {
        "id": f"{name}/{json_sha(row['Text'], both)[:8]}", "suite": suite,
        "question": text_of(row["Text"], "no question: the official download script fills it in"),
        "frames": [media.image(row["Image"])], "preference": int(better[-1]),
    }  # fmt: skip


def judgebench(row, media):
    """JudgeBench: `pair_id, source, question, response_A, response_B, label "A>B" | "B>A"`; text alone.

    The four suites by prefix of `source` are from memory, not checked.
    """
    if row["label"] not in ("A>B", "B>A"):
        raise Rejected("the label is neither A>B nor B>A", row["label"])
    starts = {"mmlu-pro": "knowledge", "livebench-reasoning": "reasoning", "livebench-math": "math", "livecodebench": "coding"}
    return responses(row["response_A"], row["response_B"]) | {
        "id": f"judgebench/{row['pair_id']}", "question": text_of(row["question"], "no question"), "frames": [],
        "suite": next((suite for start, suite in starts.items() if row["source"].startswith(start)), "other"),
        "preference": 1 if row["label"] == "A>B" else 2,
    }  # fmt: skip


def own(row, media):
    """Rows that are records already (design.md): your own JSONL, or PhyCritic-Bench as build_pairs.py --benchmark makes it."""
    found = {"video": media.video(row["video"])} if row.get("video") else {}
    for field, place in (("frames", media.image), ("videos", media.video)):
        found |= {field: [place(name) for name in row[field]]} if row.get(field) else {}
    return row | found


LOADERS = {  # name: (row -> record, modes)
    "cosmos_reason1": (cosmos_reason1, ("question",)), "cv_bench": (cv_bench, ("question",)),
    "egoplan_bench2": (egoplan_bench2, ("question",)), "lingoqa": (lingoqa, ("question",)),
    "roboreward": (roboreward, ("question", "judge")), "vl_rewardbench": (vl_rewardbench, ("judge",)),
    "multimodal_rewardbench": (multimodal_rewardbench, ("judge",)), "judgebench": (judgebench, ("judge",)),
    "phycritic_bench": (own, ("judge",)), "own": (own, ("question", "judge")),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# From rows to a file of records


def kept(source, files, media, pair, counts):
    """Yield the records of the rows that can be used; `pair` checks them as pairs. Counts all and rejects with reasons."""
    loader, seen = LOADERS[source][0], set()
    for file in files:
        media.here = file.parent
        for where, whole in read_rows(file):
            for row in split(source, whole):
                counts.read += 1
                try:
                    record = loader(row, media) | {"number": counts.read}
                    check_record(record, where, pair, answered=False)
                    if record["id"] in seen and source != "lingoqa":
                        raise Rejected("the same row stands twice", record["id"])
                except Rejected as error:
                    counts.reject(error.reason, where + error.detail)
                except RecordError as error:
                    counts.reject(str(error).removeprefix(f"{where}: ").split(", got")[0], where)
                except KeyError as error:
                    has = sorted(row) if isinstance(row, dict) else type(row).__name__
                    raise RecordError(f"{where}: no column {error}; it has {has}. Is this {source}?") from error
                except (TypeError, AttributeError, IndexError, ValueError) as error:
                    counts.reject("a field is not of the type that this source has", f"{where} ({error})")
                else:
                    seen.add(record["id"])
                    counts.kept += 1
                    yield record


def split(source, row):
    """The rows in a row: Cosmos-Reason1 may hold several questions of one clip."""
    several = source == "cosmos_reason1" and isinstance(row, dict) and isinstance(row.get("qa_pairs"), list)
    several = several and row["qa_pairs"]  # an empty list is a row to reject, not to pass over
    return [row | {"qa_pairs": qa} for qa in row["qa_pairs"]] if several else [row]


def references(records):
    """One record a question of those that differ only in `answer`: the first one's answer, and all under `references`."""
    merged = {}
    for record in records:
        merged.setdefault(record["id"], record | {"references": []})["references"].append(record["answer"])
    yield from merged.values()


def pair_clips(records, counts):
    """Pairs of clips of the same task with different scores (RoboRewardBench): which one comes closer to doing the task?

    Clips of a task stand in a ring, in an order set by their ids; each is paired with the next one that has another score,
    no two clips twice. So a task of n clips gives at most n pairs, and no label decides which clip is shown first.
    """
    tasks, made = {}, set()
    for record in records:
        tasks.setdefault(record["task"].casefold(), []).append(record)
    for clips in tasks.values():
        clips.sort(key=lambda record: json_sha(record["id"]))
        for place, one in enumerate(clips):
            others = clips[place + 1 :] + clips[:place]
            other = next((clip for clip in others if clip["answer"] != one["answer"]), None)
            if other is None:
                counts.unpaired += 1
            elif frozenset((one["id"], other["id"])) not in made:
                made.add(frozenset((one["id"], other["id"])))
                yield clip_pair(one, other)


def clip_pair(one, other):
    """The pair record of two clips: the responses name a clip, and the clips stay in their order when responses are swapped."""
    better = 1 if int(one["answer"]) > int(other["answer"]) else 2
    return {
        "id": f"{one['id']}+{other['id']}", "suite": one["suite"], "videos": [one["video"], other["video"]],
        "question": "Two clips, one after the other and of the same number of frames, show robots that were told: "
        f"{one['task']}. Which clip comes closer to doing it?",
        "options": {"A": "the first clip", "B": "the second clip"}, "answer": "AB"[better - 1], "preference": better,
        "response_1": r"The first clip comes closer. \boxed{A}", "response_2": r"The second clip comes closer. \boxed{B}",
        "source_1": "clip", "source_2": "clip", "number": min(one["number"], other["number"]),
    }  # fmt: skip


def convert(source, mode, dataset, out, media=None, subset=None, allow_rejected=False):
    """Write <out>/records.jsonl of a data set, whole or not at all, print the counts, and return (its path, the counts).

    `media` is the folder of clips and pictures where it is not the data set's own. Raises RecordError on a mode that the
    source does not have, a broken file, a column that is not there, no record, and more than 1% rejected unless allowed.
    """
    if mode not in LOADERS[source][1]:
        raise RecordError(f"--source {source} has --mode {' and '.join(LOADERS[source][1])}, not {mode}")
    path, out = locate(dataset, subset), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    counts, temporary = Counts(), out / f"records.{os.getpid()}.tmp"
    places = Media(media or (path if path.is_dir() else path.parent), out)
    records = kept(source, table_files(path, subset), places, mode == "judge" and source != "roboreward", counts)
    if source == "lingoqa":
        records = references(records)
    elif source == "roboreward" and mode == "judge":
        records = pair_clips(records, counts)
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            for record in tqdm(records, unit="record", desc=source):
                stream.write(json.dumps(record) + "\n")
                counts.records += 1
        report = counts.report(f"{source}, {dataset}")
        print(report, flush=True)
        if counts.reasons.total() > TOLERATED * counts.read and not allow_rejected:
            raise RecordError(f"{report}\nmore than {TOLERATED:.0%} rejected: mend the data, or pass --allow_rejected")
        if not counts.records:
            raise RecordError(f"{report}\nno record is left")
        temporary.replace(out / "records.jsonl")
    finally:
        temporary.unlink(missing_ok=True)
    return out / "records.jsonl", counts


def main():
    parser = command.Parser(prog="python -m data.sources", description=__doc__)
    parser.add_argument("--source", required=True, choices=LOADERS, help="the data set that it is")
    parser.add_argument("--mode", required=True, choices=["question", "judge"], help="questions, or pairs to judge")
    parser.add_argument("--dataset", required=True, help="local file or folder, or hub id")
    parser.add_argument("--out", required=True, help="folder for records.jsonl and images")
    parser.add_argument("--media", help="folder of clips and pictures, where it is not the data set's")
    parser.add_argument("--subset", help="part of the paths of the files to take, for example a config or test")
    parser.add_argument("--allow_rejected", action="store_true", help="go on although more than 1% of the rows are rejected")
    convert(**vars(parser.parse_args()))


if __name__ == "__main__":
    command.run(main)
