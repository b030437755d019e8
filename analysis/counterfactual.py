r"""What if the critic had answered otherwise? Judgements with another self-prediction put in the critic's mouth.

    python -m analysis.counterfactual --out runs/mechanism --matrix experiments/tables/results.jsonl
    python -m analysis.counterfactual --out runs/mechanism --limit 300 --dataset runs/physworld/test/pairs.jsonl \
        --models base=physworld/tiny_vlm stage1=runs/demo/stage1 full=runs/demo/stage2         # a model per seed: full=a,b,c

Each pair is judged in both orders, as it is (`own`). Then the judgement begins again with a changed self-prediction, and the
critic compares and decides by itself. The other answer is the one that the other of the two responses gives, so a verdict
can follow it. Only judgements whose own answer is that of exactly one response are changed; the others are counted.

    kept             the self-prediction as it was: a check, nothing should change
    same_words       <pred> says the same answer in other words ("So it is red", or the option's letter for its text)
    other            <pred> says the other answer
    other_words      <pred> says the other answer, in other words: does the verdict go by meaning or by spelling?
    think_same       <pred_think> is the critic's own of another clip on which it gave the same answer; <pred> as it was
    think_other      the same of a clip on which it gave the other answer; <pred> as it was
    think_same_free, think_other_free     and <pred> is left to the critic

Where no other clip has such an answer, <pred_think> is "The answer is ..." (`stated`; rates are given by these kinds, too).
Model `no_self_reference` is judged in its own prompt, without changes: its cost. Rows go to
<out>/<model>_seed<k>/<condition>.jsonl; a killed run carries on. analysis/mechanism.py reads them.
About 17 ms a judgement of the tiny model on one core.
"""

import argparse
import json
import random
import time
from operator import itemgetter
from pathlib import Path

from tqdm import tqdm

import data
import prompts
import rewards
from critic import own_part
from data import files
from data.files import json_sha, read_rows
from judging.calls import Call, image_sha
from judging.tasks import Tasks, read_judgement
from judging.verdicts import verdict_place

TITLES = {  # model -> what pages call it; in a matrix of runs `full` is "two_stages", the others have their own names
    "base": "base",
    "stage1": "after stage 1",
    "full": "full (two stages)",
    "no_r_sp": "no r_sp",
    "no_self_reference": "no self-reference",
}
CONDITIONS = ("kept", "same_words", "other", "other_words", "think_same", "think_other", "think_same_free", "think_other_free")
BATCH = 64  # judgements at once
WORDINGS = ("{}", "The answer is {}", "So it is {}")
UNCHANGED = "no_self_reference"  # judged in its own prompt, which has no self-prediction to change


# ------------------------------------------------------------------------------------------------- what is put in its mouth


def side_of(answer, record):
    r"""1 or 2, the response that gives this answer; None where neither or both do.

    >>> record = {"options": {"A": "left", "B": "right"}, "response_1": r"\boxed{A}", "response_2": r"It is \boxed{right}"}
    >>> side_of("right", record), side_of("A", record), side_of("up", record)
    (2, 1, None)
    """
    options = record.get("options")
    said = [rewards.extract_answer(record[f"response_{k}"], options) for k in (1, 2)]
    sides = [k for k, text in enumerate(said, 1) if answer and text and rewards.answers_match(answer, text, options)]
    return sides[0] if len(sides) == 1 else None


def option_of(answer, options):
    """The letter of the one option that an answer names, or None."""
    named = [letter for letter in options or {} if rewards.answers_match(answer, letter, options)]
    return named[0] if len(named) == 1 else None


def word(answer, options=None):
    """What an answer is looked up by: the text of the option that it names, else itself, in lower case.

    >>> word("B", {"A": "left", "B": "Right"}), word("Right", {"A": "left", "B": "Right"}), word("9")
    ('right', 'right', '9')
    """
    letter = option_of(answer, options)
    return (options[letter] if letter else answer).casefold()


def as_own(answer, own, options=None):
    """The answer as a letter where `own` is one, else as a text.

    >>> as_own("B", "left", {"A": "left", "B": "right"}), as_own("right", "A", {"A": "left", "B": "right"}), as_own("9", "8")
    ('right', 'B', '9')
    """
    letter = option_of(answer, options)
    return answer if letter is None else letter if own in options else options[letter]


def in_other_words(answer, options, seed):
    """The answer in another wording that still matches it, drawn by `seed`; None where none does.

    >>> in_other_words("red", None, "a"), in_other_words("B", {"A": "left", "B": "right"}, "b")
    ('So it is red', 'The answer is B')
    """
    letter = option_of(answer, options)
    forms = [wording.format(text) for wording in WORDINGS for text in ([letter, options[letter]] if letter else [answer])]
    fits = [form for form in dict.fromkeys(forms) if form != answer and rewards.answers_match(form, answer, options)]
    return random.Random(f"words/{seed}").choice(fits) if fits else None


def thoughts_of(rows):
    """{(question or suite, answer): [(id, pred_think), ...]} of a model's own judgements, by what it answered."""
    thoughts = {}
    for row in rows:
        if row["prediction"] and row["think"]:
            for where in (row["question"], row["suite"]):
                thoughts.setdefault((where, word(row["prediction"], row["options"])), []).append((row["id"], row["think"]))
    return thoughts


def other_thought(thoughts, row, answer):
    """(pred_think, where it is from): the critic's own of another clip with this answer, drawn by id; else a statement."""
    for kind in ("question", "suite"):
        pool = [think for name, think in thoughts.get((row[kind], word(answer, row["options"])), []) if name != row["id"]]
        if pool:
            return random.Random(f"thought/{row['id']}/{row['order']}/{answer}").choice(pool), kind
    return f"The answer is {answer}.", "stated"


def changed(condition, row, record, thoughts):
    """{"prefix", "inserted", "side", "donor"} of a condition for an own judgement; None where it cannot be changed so.

    `side` is the response that the inserted answer speaks for; `donor` says where the thought is from (question, suite or
    stated), or what the other words are (the option's letter or text, or a sentence).
    """
    own, options, side, think, donor = row["prediction"], record.get("options"), row["own_side"], row["think"], None
    other = side and rewards.extract_answer(record[f"response_{3 - side}"], options)
    if other is None or row["part"] is None:
        return None
    answer = pred = as_own(other, own, options) if "other" in condition else own
    if condition.startswith("think"):
        (think, donor), pred = other_thought(thoughts, row, answer), own
    elif condition.endswith("words"):
        pred = in_other_words(answer, options, row["id"])
        donor = "option" if options and pred in (*options, *options.values()) else "sentence"
    if pred is None:
        return None
    prefix = f"<pred_think> {think or ''} </pred_think>" + ("" if condition.endswith("free") else f" <pred> {pred} </pred>")
    if condition == "kept":
        prefix = row["part"]
    return {"prefix": prefix, "inserted": answer, "side": side if answer == own else 3 - side, "donor": donor}


# ---------------------------------------------------------------------------------------------------------- judging


def ask(writer, tasks, prefixes, prompt):
    """A row per (record, order) with a prefix (None: the critic writes all of it): what was written and what it says."""
    calls, made = [], []
    for (record, order), prefix in zip(tasks, prefixes, strict=True):
        frames = tuple(data.open_frames(record))
        shown = [record["response_" + number] for number in order]
        messages = prompts.critic_prompt(record["question"], *shown, record.get("options"), len(frames), prompt)
        shas = tuple(map(image_sha, frames))
        group = json_sha(record["question"], record.get("options"), shas, prompt)
        calls.append(Call(messages, (), None, frames, shas, group, None, prefix))
    for (record, order), prefix, (_, reply) in zip(tasks, prefixes, sorted(writer.run(calls), key=itemgetter(0))):
        text = (prefix or "") + reply.text
        row = {"id": record["id"], "suite": record["suite"], "cluster": record["cluster"]}
        row |= read_judgement(record, order, text, prompt)
        found, p = verdict_place(text), reply.readings[0]
        if found and p is not None and row["verdict"] == int(order[found[1] - 1]):  # as critic.py reads it
            row["p_first"] = p if order == "12" else 1 - p
        row |= {"text": text, "prompt_tokens": reply.tokens.input, "completion_tokens": reply.tokens.output}
        made.append(row)
    return made


def about(record, row):
    """What an own judgement's row says beside the judgement: what changes and tables need of its record."""
    written = [k for k in (1, 2) if record[f"source_{k}"] == "written"]
    think = rewards.parse_critique(row["text"]).pred_think
    made = {"question": record["question"], "options": record.get("options"), "think": think, "part": own_part(row["text"])}
    return made | {"own_side": side_of(row["prediction"], record), "written": written[0] if len(written) == 1 else None}


def judge(folder, condition, tasks, settings, writer, own=None):
    """Every row of a condition, made where it is not there yet; `own` are the own judgements, for a changed condition."""
    path, prompt = folder / f"{condition}.jsonl", settings["prompt"]
    settings = settings | {"condition": condition}
    stream, rows = files.open_rows(path, path.with_suffix(".json"), settings)
    result = files.read_result(path.with_suffix(".json")) or {"config": settings, "seconds": 0.0}
    files.write_result(path.with_suffix(".json"), result)
    done = {(row["id"], row["order"]): row for row in rows}
    todo = [] if result.get("finished") else [place for place, key in enumerate(tasks.keys) if key not in done]
    thoughts = thoughts_of(own.values()) if own else {}
    with stream:
        for start in tqdm(range(0, len(todo), BATCH), desc=f"{folder.name} {condition}", unit="batch", disable=not todo):
            began, batch, changes = time.time(), [], []
            for record, order in (tasks[place] for place in todo[start : start + BATCH]):
                change = changed(condition, own[record["id"], order], record, thoughts) if own else {"prefix": None}
                if change:
                    batch.append((record, order))
                    changes.append(change)
            made = ask(writer, batch, [change.pop("prefix") for change in changes], prompt)
            for (record, order), change, row in zip(batch, changes, made):
                row |= change if own else about(record, row)
                done[row["id"], order] = row
                stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
            result["seconds"] = round(result["seconds"] + time.time() - began, 2)
            files.write_result(path.with_suffix(".json"), result)
        if not result.get("finished"):
            files.write_result(path.with_suffix(".json"), result | {"finished": True} | files.provenance())
    return done


def models_of(args):
    """{name: [(seed, path), ...]} of --models or --matrix; raises ValueError on a name or a run that is not there."""
    if args.matrix:
        rows = {(row["run"], row["seed"]): row["evaluations"]["judge_test"]["config"]["model"] for row in read_rows(args.matrix)}
        runs = {name: "two_stages" if name == "full" else name for name in TITLES}
        found = {name: [(seed, path) for (run, seed), path in rows.items() if run == runs[name]] for name in TITLES}
    else:
        given = dict(model.split("=", 1) for model in args.models)
        found = {name: list(enumerate(paths.split(","))) for name, paths in given.items()}
    odd = sorted(set(found) - set(TITLES)) or [name for name, models in found.items() if not models]
    if odd:
        raise ValueError(f"{odd}: no such model here; names are {list(TITLES)}")
    return found


def main(argv=None):
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--models", nargs="+", metavar="NAME=PATH[,PATH]", help=f"names: {', '.join(TITLES)}")
    where.add_argument("--matrix", type=Path, help="results.jsonl of experiments/run.py: all seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/mechanism"), help="folder of the rows")
    parser.add_argument("--dataset", help="JSONL of pairs; default is physworld's test split")
    parser.add_argument("--limit", type=int, default=500, help="pairs, drawn by a hash of their ids")
    parser.add_argument("--max_new_tokens", type=int, default=128, help="of a judgement; a 7B model needs 2048")
    args = parser.parse_args(argv)
    from judging.local import LocalBackend  # torch: after --help

    if args.dataset is None:
        from physworld import dataset

        args.dataset = str(dataset.pairs_file("test"))
    try:
        models = models_of(args)
    except ValueError as error:
        raise SystemExit(f"counterfactual: {error}") from error
    tasks = Tasks(data.RecordFile(args.dataset, pair=True), ("12", "21"), args.limit)
    records = files.content_sha(args.dataset)
    for name, seeds in models.items():
        for seed, path in seeds:
            folder, settings = args.out / f"{name}_seed{seed}", {"model": path, "weights": files.content_sha(path)}
            settings |= {"records": records, "limit": args.limit, "max_new_tokens": args.max_new_tokens}
            settings["prompt"] = "no_self_ref" if name == UNCHANGED else "self_ref"
            writer = LocalBackend.load(path, batch_size=BATCH, analysis_tokens=args.max_new_tokens, temperature=0.0)
            own = judge(folder, "own", tasks, settings, writer)
            for condition in CONDITIONS if name != UNCHANGED else ():
                judge(folder, condition, tasks, settings, writer, own)


if __name__ == "__main__":
    main()
