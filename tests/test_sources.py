"""Loaders of public data sets, the benchmarks' own scores, and evaluate.py on them. CPU, no network; fixtures are ours."""

import json
import os
import random
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import data
import evaluate
import prompts
from analysis import paper_tables
from data import source_files, sources
from evaluate import EvaluateConfig
from judging import judges, official_scores, tasks
from judging.models import Completion
from tests import tiny_critic
from tests.fault_proxy import FaultProxy, reply
from tests.stub_judge import open_server

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
TWICE, LETTER, VIDEO = "the same row stands twice", "the answer's letter has no option", "no such video"
SAME = "both responses are the same text"
EXPECTED = {  # (source, mode): rows read, records, why rows were rejected; counted by hand
    ("cosmos_reason1", "question"): (13, 9, {TWICE: 1, LETTER: 1, VIDEO: 1, "no answer": 1}),
    ("cv_bench", "question"): (12, 8, {TWICE: 1, LETTER: 1, "the image cannot be opened": 1, "fewer than two options": 1}),
    ("egoplan_bench2", "question"): (11, 7, {LETTER: 2, VIDEO: 1, "its frames are no span": 1}),
    ("lingoqa", "question"): (13, 6, {"no folder of frames": 2, "no answer": 1}),
    ("roboreward", "question"): (13, 9, {"the reward is not 1 to 5": 2, VIDEO: 1, "no task": 1}),
    ("roboreward", "judge"): (13, 4, {"the reward is not 1 to 5": 2, VIDEO: 1, "no task": 1}),
    ("vl_rewardbench", "judge"): (12, 8, {
        "does not rank one of two responses first": 1, SAME: 1, "no question": 1, "no such image": 1}),
    ("multimodal_rewardbench", "judge"): (12, 9, {
        "no question: the official download script fills it in": 1, "Better is neither Output1 nor Output2": 1,
        "a response is empty": 1}),
    ("judgebench", "judge"): (12, 8, {
        "the label is neither A>B nor B>A": 1, SAME: 1, "no question": 1, TWICE: 1}),
    ("phycritic_bench", "judge"): (13, 8, {
        "field 'preference' must be 1 or 2": 1, "no such image": 1, TWICE: 1, "field 'response_2' must be a non-empty string": 1,
        "field 'answer': answer 'C' names none of the options ['A', 'B']: write one letter or the text of one option": 1}),
    ("own", "question"): (12, 8, {
        "field 'id' must be a non-empty string": 1, TWICE: 1,
        "needs 'frames' (a list of image paths, may be empty), 'video' (a path) or 'videos'": 1,
        "field 'answer': answer 'E' names none of the options ['A', 'B']: write one letter or the text of one option": 1}),
}  # fmt: skip


def load(source, mode, out, folder=None, **more):
    """(records by id, counts) of a source's fixtures."""
    subset = "test" if source == "roboreward" else None
    path, counts = sources.convert(source, mode, folder or FIXTURES / source, out, subset=subset, allow_rejected=True, **more)
    return {record["id"]: record for _, record in data.read_jsonl(path)}, counts


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """{(source, mode): (records, counts)} of all fixtures."""
    return {key: load(*key, tmp_path_factory.mktemp("records")) for key in EXPECTED}


# --- loaders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source, mode", EXPECTED)
def test_counts_and_reasons(loaded, source, mode, capsys):
    records, counts = loaded[source, mode]
    read, kept, reasons = EXPECTED[source, mode]
    assert (counts.read, len(records), dict(counts.reasons)) == (read, kept, reasons)
    assert counts.read == counts.kept + counts.reasons.total() and counts.records == kept
    for where in counts.first.values():  # file and row
        assert re.match(rf"{FIXTURES}/{source}/\S+:\d+", where)
    report = counts.report(source)
    assert f"read {read}, kept {counts.kept}, rejected {sum(reasons.values())}" in report and all(
        why in report for why in reasons
    )


@pytest.mark.parametrize("source, mode", EXPECTED)
def test_every_record_opens_and_makes_its_prompts(loaded, source, mode, tmp_path):
    records, _ = loaded[source, mode]
    data_file = tmp_path / "records.jsonl"
    data_file.write_text(
        "".join(json.dumps(record) + "\n" for record in records.values() if not str(record.get("frames")).count("'images/"))
    )
    for record in tasks.load_tasks(data_file, mode == "judge", answered=False):
        frames = data.open_frames(record[0])
        assert all(min(image.size) >= 28 and image.mode == "RGB" for image in frames)
        assert len(frames) > 0 or source == "judgebench"
        tasks.task_prompt(*record, len(frames), "self_ref")


HAND = [row for _, row in data.read_jsonl(FIXTURES / "by_hand.jsonl")]  # fields as they must be, and why


@pytest.mark.parametrize("case", HAND, ids=[f"{row['source']} {row['id']}" for row in HAND])
def test_records_checked_by_hand(loaded, case):
    records = loaded[case["source"], case["mode"]][0].items()
    found = [{key: record[key] for key in case["fields"]} for id, record in records if id.startswith(case["id"])]
    for fields in found:
        if "video" in fields:
            fields["video"] = fields["video"].removeprefix(f"{FIXTURES}/{case['source']}/")
    assert case["fields"] in found, case["why"]


def test_rows_that_share_an_id_and_differ_are_all_kept(loaded):
    assert len([id for id in loaded["vl_rewardbench", "judge"][0] if id.startswith("VLFeedback-16")]) == 2
    assert len([id for id in loaded["multimodal_rewardbench", "judge"][0] if id.startswith("RealworldQA-8")]) == 2


def test_pairs_of_clips(loaded):
    records, counts = loaded["roboreward", "judge"]
    clips = loaded["roboreward", "question"][0]
    for pair in records.values():
        first, second = (clips[id] for id in pair["id"].split("+"))
        assert first["task"].casefold() == second["task"].casefold() and first["answer"] != second["answer"]
        assert pair["videos"] == [first["video"], second["video"]]
        assert (
            pair["preference"] == (1 if int(first["answer"]) > int(second["answer"]) else 2)
            and pair["answer"] == "AB"[pair["preference"] - 1]
        )
    told = Counter(re.search("told: (.*?)\\.", pair["question"])[1].casefold() for pair in records.values())
    assert told == {"put the lid on the pot": 3, "close the drawer": 1}
    assert counts.unpaired == 4  # two alike at "pour", one alone at "open" and at "take"; the rest is paired


def test_frames_of_two_clips_and_of_a_span(loaded):
    pair = next(iter(loaded["roboreward", "judge"][0].values()))
    assert len(data.open_frames(pair, 4)) == 4 and len(data.open_frames(pair, 3)) == 2
    ego = loaded["egoplan_bench2", "question"][0]["egoplan/0d27-ab_1"]  # frames 2 to 11; frame i is 20 i bright
    shades = [round(image.getpixel((14, 14))[0] / 20) for image in data.open_frames(ego, 4)]
    assert shades == [2, 5, 8, 11]
    with pytest.raises(data.RecordError, match="speaks of frames 0 to 30, the video has 12"):
        data.open_frames(ego | {"span": [0, 30]})


def as_parquet(source, tables, out, column):
    """The fixtures of a source as parquet with pictures inside, as the hub has them."""
    rows = [row for table in tables for _, row in data.read_jsonl(FIXTURES / source / table)]
    for row in rows:
        name = row[column]
        places = [FIXTURES / source / name, FIXTURES / source / "img" / name]
        file = next((place for place in places if place.is_file()), None)
        row["image"] = {"bytes": file.read_bytes(), "path": None} if file else None
        row |= {"choices": [str(choice) for choice in row["choices"]], "bbox": None} if "choices" in row else {}
    out.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out / "test-00000-of-00001.parquet", row_group_size=5)
    return out


@pytest.mark.parametrize(
    "source, mode, tables, column",
    [
        ("vl_rewardbench", "judge", ["test.jsonl"], "image"),
        ("cv_bench", "question", ["test_2d.jsonl", "test_3d.jsonl"], "filename"),
    ],
)
def test_parquet_with_pictures_gives_what_files_give(loaded, tmp_path, source, mode, tables, column):
    folder = as_parquet(source, tables, tmp_path / "hub", column)
    records, counts = load(source, mode, tmp_path / "out", folder)
    expected, _ = loaded[source, mode]
    assert {id: record | {"frames": 0} for id, record in records.items()} == {id: r | {"frames": 0} for id, r in expected.items()}
    for id, record in records.items():
        with Image.open(tmp_path / "out" / record["frames"][0]) as here, Image.open(expected[id]["frames"][0]) as there:
            assert here.tobytes() == there.tobytes()
    assert sum(counts.reasons.values()) == sum(EXPECTED[source, mode][2].values())


def test_a_hub_id_is_fetched_and_read_as_a_folder(loaded, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *words, **more: asked.append((words, more)) or str(FIXTURES / "roboreward")
    )
    records, _ = load("roboreward", "question", tmp_path, "teetone/RoboReward")
    assert records == loaded["roboreward", "question"][0]
    assert asked == [(("teetone/RoboReward",), {"repo_type": "dataset", "allow_patterns": ["*test*"]})]
    with pytest.raises(data.RecordError, match="nor a hub id"):
        source_files.locate(str(tmp_path / "absent" / "folder"))


# --- what must never reach a prompt ---------------------------------------------------------------------------------


def poison(source, row):
    """The row with every field that tells the label set to POISON, and the label itself turned round."""
    row = json.loads(json.dumps(row).replace("LABEL", "POISON"))
    turned = {
        "cosmos_reason1": lambda: row["qa_pairs"].update(answer="B", explanation="POISON"),
        "cv_bench": lambda: row.update(answer="(B)", prompt="POISON", target_class="POISON", source_filename="POISON"),
        "egoplan_bench2": lambda: row.update(golden_choice_idx="B", answer="POISON", scenario="POISON"),
        "lingoqa": lambda: row.update(answer="POISON"),
        "roboreward": lambda: row.update(reward=6 - int(row["reward"]), gpt5_mini_check="POISON"),
        "vl_rewardbench": lambda: row.update(human_ranking=row["human_ranking"][::-1], models=["POISON"] * 2, judge="POISON"),
        "multimodal_rewardbench": lambda: row.update(Better=f"Output{3 - int(row['Better'][-1])}", Source="POISON"),
        "judgebench": lambda: row.update(label=row["label"][::-1], response_model="POISON", original_id="POISON"),
        "phycritic_bench": lambda: row.update(
            preference=3 - row["preference"], answer="B" if row["options"] else "53 cm", source_1="POISON", facts="POISON"
        ),
        "own": lambda: row.update(answer="B", facts="POISON", kind="POISON"),
    }  # fmt: skip
    turned[source]()
    return row


def good_rows(source, mode):
    """(file, row) of the fixture rows that the loader keeps, one question of a clip each."""
    counts, media = source_files.Counts(), source_files.Media(FIXTURES / source, FIXTURES)
    found = []
    for file in source_files.table_files(FIXTURES / source, "test" if source == "roboreward" else None):
        media.here = file.parent
        for _, row in source_files.read_rows(file):
            try:
                if sources.split(source, row) == [row] and sources.LOADERS[source][0](row, media):
                    data.check_record(
                        sources.LOADERS[source][0](row, media), "", mode == "judge" and source != "roboreward", False
                    )
                    found.append((file, row))
            except (source_files.Rejected, data.RecordError, KeyError):
                counts.reject("not a good row", "")
    return found


def all_prompts(records, mode):
    """Every prompt that a judge or a model gets of these records: critic's variants in both orders, own, verifier's."""
    from tests.stub_judge import Fake, quiet

    made = []
    for record in records:
        for order in ("12", "21") if mode == "judge" else (None,):
            made += [tasks.task_prompt(record, order, 1, variant) for variant in prompts.VARIANTS]
            made.append(tasks.task_prompt(record, order, 1, "own", "{question} {options} {response_1} {response_2}"))
        if mode == "judge":
            backend = Fake(lambda call: "AB")
            question = prompts.question_text(record["question"], record.get("options"))
            quiet(backend, repeats=2).compare(question, record["response_1"], record["response_2"])
            made += [call.messages for call in backend.calls]
    return made


@pytest.mark.parametrize("source, mode", EXPECTED)
def test_no_label_reaches_a_prompt(source, mode, tmp_path):
    """Fields that tell the label are poisoned and the label is turned round: the same prompts must come out, without poison."""
    made = {}
    for name, change in (("as it is", lambda source, row: row), ("poisoned", poison)):
        folder = tmp_path / name / source
        for file, row in good_rows(source, mode):
            copy = folder / file.relative_to(FIXTURES / source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.with_suffix(".jsonl").open("a") as stream:
                stream.write(json.dumps(change(source, row)) + "\n")
        records, _ = load(
            source, mode, tmp_path / name / "out", folder, media=FIXTURES / source if source != "own" else FIXTURES / "own"
        )
        made[name] = records
    plain, poisoned = (all_prompts(made[name].values(), mode) for name in ("as it is", "poisoned"))
    text = json.dumps(poisoned)
    assert len(poisoned) >= 4 and "POISON" not in text and "LABEL" not in text and "gpt5" not in text
    assert json.dumps(plain) == text
    labels = [[(r["answer"], r.get("preference")) for r in made[name].values()] for name in ("as it is", "poisoned")]
    assert labels[0] != labels[1], "the label was not turned round: this test tests nothing"


# --- what is refused ------------------------------------------------------------------------------------------------


def test_more_than_one_in_a_hundred_is_an_error_unless_allowed(tmp_path):
    rows = [json.loads(line) for line in (FIXTURES / "judgebench/gpt.jsonl").read_text().splitlines()[:2]]
    many = [rows[0] | {"pair_id": str(i)} for i in range(200)]
    file = tmp_path / "pairs.jsonl"
    for bad, refused in ((2, False), (3, True)):  # of 200: 1% and 1.5%
        file.write_text("".join(json.dumps(row | {"label": "?"} if i < bad else row) + "\n" for i, row in enumerate(many)))
        if refused:
            before = (tmp_path / "out/records.jsonl").read_bytes()
            with pytest.raises(
                data.RecordError,
                match=r"rejected 3 x the label is neither A>B nor B>A; first: \S+pairs.jsonl:1(.|\n)*--allow_rejected",
            ):
                sources.convert("judgebench", "judge", file, tmp_path / "out")
            assert (tmp_path / "out/records.jsonl").read_bytes() == before and len(list((tmp_path / "out").iterdir())) == 1
            assert sources.convert("judgebench", "judge", file, tmp_path / "out", allow_rejected=True)[1].records == 197
        else:
            assert sources.convert("judgebench", "judge", file, tmp_path / "out")[1].records == 198


def test_a_clip_without_questions_is_rejected_and_counted(tmp_path):
    file = next((FIXTURES / "cosmos_reason1").rglob("*.json*"))
    _, row = next(source_files.read_rows(file))
    assert len(sources.split("cosmos_reason1", row | {"qa_pairs": [row["qa_pairs"]] * 2})) == 2
    (tmp_path / "empty.jsonl").write_text(json.dumps(row | {"qa_pairs": []}) + "\n")
    with pytest.raises(data.RecordError, match="read 1, kept 0, rejected 1(.|\n)*qa_pairs lacks"):
        sources.convert("cosmos_reason1", "question", tmp_path / "empty.jsonl", tmp_path / "out")


def test_broken_files_name_file_and_row(tmp_path):
    good = (FIXTURES / "judgebench/gpt.jsonl").read_text().splitlines()
    cases = [
        ("cut.jsonl", good[0] + "\n" + good[1][:50], "judgebench", "judge", r"cut\.jsonl:2: not JSON .*is the line cut off\?"),
        ("list.jsonl", good[0] + "\n[1]\n", "judgebench", "judge", r"list\.jsonl:2: expected an object"),
        ("column.jsonl", good[0].replace("response_B", "r"), "judgebench", "judge", r"column\.jsonl:1: no column 'response_B'; it has"),
        ("other.jsonl", good[0], "cv_bench", "question", r"other\.jsonl:1: no column '\w+'; .*Is this cv_bench\?"),
        ("cut.json", '[{"a": 1}, {"a"', "multimodal_rewardbench", "judge", r"cut\.json: not JSON .*was the download cut\?"),
        ("cut.parquet", "PAR1 nothing", "vl_rewardbench", "judge", r"cut\.parquet: cannot be read as parquet"),
        ("bytes.jsonl", "\xff\xfe{}", "judgebench", "judge", r"bytes\.jsonl:1: not JSON"),
    ]  # fmt: skip
    for name, text, source, mode, message in cases:
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(data.RecordError, match=message):
            sources.convert(source, mode, tmp_path / name, tmp_path / "out")
    with pytest.raises(data.RecordError, match="no .parquet, .jsonl"):
        sources.convert("judgebench", "judge", FIXTURES / "cosmos_reason1/agibot/clips", tmp_path / "out")
    with pytest.raises(data.RecordError, match="--source judgebench has --mode judge, not question"):
        sources.convert("judgebench", "question", tmp_path, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


# --- the benchmarks' own scores -------------------------------------------------------------------------------------

OUTCOMES = st.lists(
    st.tuples(
        st.sampled_from(["general", "hallucination", "reasoning"]), st.sampled_from([1, 2]),
        st.sampled_from([1, 2, None]), st.sampled_from([1, 2, None]),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


def judged(outcomes):
    """Rows of pairs (suite, preference, verdict in order 12, verdict in order 21)."""
    return [
        {"id": f"p{i}", "cluster": i, "suite": suite, "number": len(outcomes) - i, "order": order, "preference": preference,
         "verdict": verdict, "verdict_correct": verdict == preference}
        for i, (suite, preference, *verdicts) in enumerate(outcomes) for order, verdict in zip(("12", "21"), verdicts)
    ]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(OUTCOMES)
def test_official_scores_agree_with_plain_loops(outcomes):
    rows = judged(outcomes)
    score = official_scores.official("multimodal_rewardbench", "judge", rows)
    random.seed(123)  # as the official script does it: file order, a global generator, A or B
    right = 0
    for row in sorted((row for row in rows if row["order"] == "12"), key=lambda row: row["number"]):
        letter = {1: "A", 2: "B"}[row["verdict"]] if row["verdict"] else "A" if random.random() < 0.5 else "B"
        right += letter == "AB"[row["preference"] - 1]
    assert score["value"] == pytest.approx(right / len(outcomes)) and score["n"] == len(outcomes)

    score = official_scores.official("judgebench", "judge", rows)
    correct = 0
    for _, preference, *verdicts in outcomes:
        counter = sum(0 if verdict is None else 1 if verdict == preference else -1 for verdict in verdicts)
        correct += counter > 0
    assert score["value"] == pytest.approx(correct / len(outcomes)) and score["n"] == len(outcomes)

    score = official_scores.official("vl_rewardbench", "judge", rows)
    chosen = [row for row in official_scores.one_order(rows) if row["verdict"] is not None]
    assert len(official_scores.one_order(rows)) == len(outcomes) and score["n"] == len(chosen)
    if chosen:
        assert score["value"] == pytest.approx(sum(row["verdict_correct"] for row in chosen) / len(chosen))
        groups = {
            suite: [row["verdict_correct"] for row in chosen if row["suite"] == suite]
            for suite in {row["suite"] for row in chosen}
        }
        assert score["macro"]["value"] == pytest.approx(sum(sum(g) / len(g) for g in groups.values()) / len(groups))


def test_unreadable_rows_by_each_rule():
    """Two pairs right in both orders, two unreadable in both: ours is 50%, and three benchmarks say three things."""
    rows = judged([("general", 1, 1, 1)] * 2 + [("general", 1, None, None)] * 2)
    values = {
        source: official_scores.official(source, "judge", rows)["value"]
        for source in ("vl_rewardbench", "judgebench", "multimodal_rewardbench")
    }
    coin = random.Random(123)
    assert values == {
        "vl_rewardbench": 1.0,
        "judgebench": 0.5,
        "multimodal_rewardbench": (2 + sum(coin.random() < 0.5 for _ in range(2))) / 4,
    }


def test_cv_bench_weighs_sources_as_its_card_says():
    rights = {"ADE20K": [1, 1, 1, 0], "COCO": [1, 0], "Omni3D": [0, 0, 0, 1, 1]}
    rows = [
        {"id": f"{s}{i}", "cluster": f"{s}{i}", "suite": s, "correct": bool(r)}
        for s, some in rights.items()
        for i, r in enumerate(some)
    ]
    score = official_scores.official("cv_bench", "question", rows)
    assert (
        score["value"] == pytest.approx(((0.75 + 0.5) / 2 + 0.4) / 2)
        and score["low"] < score["value"] < score["high"]
        and score["n"] == 11
    )
    assert official_scores.official("cv_bench", "question", rows[:4])["value"] is None
    assert "no row of COCO, Omni3D" in official_scores.official("cv_bench", "question", rows[:4])["rule"]


def test_mean_error_of_scores():
    rows = [
        {"cluster": i, "prediction": said, "answer": truth}
        for i, (said, truth) in enumerate([("5", "5"), ("4/5", "2"), (None, "2"), ("9", "5")])
    ]
    score = official_scores.official("roboreward", "question", rows)
    assert (score["value"], score["n"], score["unit"]) == (1.0, 2, "points")  # |0|, |2|; two cannot be read
    assert (score["ours"]["value"], score["ours"]["n"]) == ((0 + 2 + 3 + 4) / 4, 4)
    assert any("ours, unreadable worst" in line for line in official_scores.lines(score))


def test_lingoqa_predictions_for_its_own_script(tmp_path):
    rows = [{"id": "seg_a/q1", "prediction": "green"}, {"id": "seg_b/q3", "prediction": None}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    official_scores.lingoqa_predictions(tmp_path / "rows.jsonl", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines() == ["question_id,segment_id,answer", "q1,seg_a,green", "q3,seg_b,"]


# --- evaluate.py ----------------------------------------------------------------------------------------------------

CRITIQUE = "<pred_think> r </pred_think> <pred> A </pred> <think> so </think> \\boxed{Response 1}"


def run(monkeypatch, out, source, mode, text, **more):
    """evaluate.py on a source's fixtures with a model that always says `text`."""
    monkeypatch.setattr(judges, "load_model", lambda path: (None, None))
    monkeypatch.setattr(judges, "complete", lambda *given: [Completion(text, 10, 5) for _ in given[2]])
    subset = {"subset": "test"} if source == "roboreward" else {}
    config = EvaluateConfig(
        "m", mode, str(out), dataset=str(FIXTURES / source), source=source, allow_rejected=True, **subset, **more
    )
    return evaluate.evaluate(config)


@pytest.mark.parametrize("source, mode", EXPECTED)
def test_evaluate_takes_every_source(monkeypatch, tmp_path, loaded, source, mode):
    text = CRITIQUE if mode == "judge" else "\\boxed{2}" if source in ("roboreward", "lingoqa") else "\\boxed{A}"
    result = run(monkeypatch, tmp_path / "r.json", source, mode, text)
    records = loaded[source, mode][0].values()
    assert result["finished"] and result["accuracy"]["n"] == len(records) * (2 if mode == "judge" else 1)
    if mode == "judge":
        assert result["accuracy"]["value"] == 0.5 and result["first_share"]["value"] == 1.0
        truths = sum(record["answer"] is not None for record in records)
        assert result["prediction_accuracy"]["n"] == 2 * truths  # no truth is known in the others
    else:
        right = sum(
            "2" in (r.get("references") or [r["answer"]]) if source in ("roboreward", "lingoqa") else r["answer"] == "A"
            for r in records
        )
        assert result["accuracy"]["value"] == pytest.approx(right / len(records))
    odd = {"vl_rewardbench", "multimodal_rewardbench", "judgebench", "cv_bench"} | (
        {"roboreward"} if mode == "question" else set()
    )
    assert bool(result["official"]) == (source in odd)
    assert ("official score" in "\n".join(evaluate.table(result))) == (source in odd)
    again = run(monkeypatch, tmp_path / "r.json", source, mode, text)
    assert again == result  # nothing left to do


def test_a_limit_and_a_benchmarks_own_prompt(monkeypatch, tmp_path):
    (tmp_path / "own.txt").write_text("Q: {question} 1: {response_1} 2: {response_2}")
    settings = {"limit": 3, "prompt_file": str(tmp_path / "own.txt")}
    result = run(monkeypatch, tmp_path / "r.json", "multimodal_rewardbench", "judge", "Hm [[B]]", **settings)
    assert result["accuracy"]["n"] == 6 and result["first_share"]["value"] == 0.0 and result["prediction_accuracy"]["n"] == 0
    (tmp_path / "own.txt").write_text("another {question}")
    with pytest.raises(SystemExit, match="another configuration.*prompt_file was"):
        run(monkeypatch, tmp_path / "r.json", "multimodal_rewardbench", "judge", "Hm [[B]]", **settings)
    result = run(
        monkeypatch, tmp_path / "e.json", "egoplan_bench2", "question", "Because: C", prompt_file=str(tmp_path / "own.txt")
    )
    rows = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert {row["prediction"] for row in rows} == {"B"}  # the first capital of A to D, as the benchmark reads it
    template = "{response_1} {question} {x}"
    message = tasks.task_prompt({"question": "{response_2}", "response_1": "a", "response_2": "b"}, "21", 2, "own", template)
    assert [block["type"] for block in message[0]["content"]] == ["image", "image", "text"]
    assert message[0]["content"][2]["text"] == "b {response_2} {x}"  # filled in once, nothing inside what was filled in


def served_config(url, out, **more):
    settings = {"dataset": str(FIXTURES / "vl_rewardbench"), "source": "vl_rewardbench", "allow_rejected": True, "batch_size": 4}
    return EvaluateConfig("stub", "judge", str(out), base_url=url, **settings, **more)


def test_a_server_judges_and_failed_calls_are_asked_again(tmp_path):
    def upstream(request):
        assert request["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
        return reply([(CRITIQUE, [])], usage=(50, 0, 9))

    with FaultProxy(upstream, lambda request: "filtered" if "poem" in json.dumps(request) else None) as proxy:
        first = evaluate.evaluate(served_config(proxy.url, tmp_path / "r.json"))
        assert (
            not first["finished"]
            and sum(first["failed"].values()) == 2
            and first["accuracy"]["n"] == 14
            and first["consistency"]["n"] == 7
        )
        assert "not finished: 2 calls failed" in "\n".join(evaluate.table(first))
        proxy.choose = lambda request: None
        second = evaluate.evaluate(served_config(proxy.url, tmp_path / "r.json"))
    assert second["finished"] and second["accuracy"]["n"] == 16 and second["prompt_tokens"] == 16 * 50
    with pytest.raises(ValueError, match="not finished"):
        paper_tables.judge_tables({"r.json": first}, json.loads(paper_tables.NUMBERS.read_text()))


def test_the_verifier_judges(tmp_path):
    """A verifier that always grades the first slot better: its verdict is the response shown first."""
    with FaultProxy(open_server) as proxy:
        result = evaluate.evaluate(served_config(proxy.url, tmp_path / "r.json", verifier="physical/truthfulness.md"))
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert all(
        str(row["verdict"]) == row["order"][0] and row["prediction_correct"] is None and not row["cut_off"] for row in rows
    )
    assert all((row["p_first"] > 0.5) == (row["verdict"] == 1) for row in rows)
    assert result["finished"] and result["accuracy"]["value"] == 0.5 and result["completion_tokens"] > 0
    assert result["official"]["n"] == 8


def big_file(path, n):
    """n pairs with long responses."""
    rest = {"suite": "s", "question": "Which?", "options": {"A": "left", "B": "right"}, "frames": [], "answer": "A"}
    rest |= {
        "response_1": "so " * 700 + r"\boxed{A}",
        "response_2": "thus " * 400 + r"\boxed{B}",
        "preference": 1,
        "source_1": "s",
        "source_2": "t",
    }
    tail = json.dumps(rest)[1:]
    path.write_text("".join(f'{{"id": "p{i}", {tail}\n' for i in range(n)))
    return path


def peak_of(function):
    """(what it returns, the largest memory in MB that Python's objects took meanwhile)."""
    tracemalloc.start()
    try:
        value = function()
        return value, tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_ten_thousand_pairs_load_and_stream_in_constant_memory(tmp_path, monkeypatch):
    file = big_file(tmp_path / "big.jsonl", 10_000)
    assert file.stat().st_size > 40 * 2**20
    records, loading = peak_of(lambda: data.RecordFile(file, pair=True))
    assert loading < 5 and len(records) == 10_000 and records[9_999]["id"] == "p9999", f"{loading:.1f} MB"
    shown = []
    monkeypatch.setattr(judges, "load_model", lambda path: (None, None))
    monkeypatch.setattr(judges, "complete", lambda *given: shown.append(1) or [Completion("x" * 4000, 1, 1) for _ in given[2]])
    monkeypatch.setattr(
        evaluate, "summarise", lambda rows, mode: {"accuracy": {"n": len(rows)}}
    )  # its bootstrap is another matter
    monkeypatch.setattr(
        evaluate,
        "read_judgement",
        lambda record, order, *_: {"order": order, "verdict": 1, "verdict_correct": True, "preference": 1},
    )
    config = EvaluateConfig("m", "judge", str(tmp_path / "r.json"), dataset=str(file), batch_size=100)
    result, running = peak_of(lambda: evaluate.evaluate(config))
    written = (tmp_path / "r.jsonl").stat().st_size / 2**20
    assert result["accuracy"]["n"] == 20_000 and written > 75
    assert running < 35, f"{running:.1f} MB"  # some 20,000 rows without their texts; the texts alone are 80 MB


def test_a_record_file_is_what_load_records_gives(tmp_path):
    file = big_file(tmp_path / "a.jsonl", 7)
    lazy, eager = data.RecordFile(file, pair=True), data.load_records(file, pair=True)
    assert [lazy[i] for i in range(7)] == eager and lazy.ids == [record["id"] for record in eager]
    big_file(file, 3)
    with pytest.raises((data.RecordError, OSError)):
        lazy[5]
    null = json.loads(file.read_text().splitlines()[0]) | {"answer": None}
    file.write_text(json.dumps(null) + "\n")
    assert data.RecordFile(file, pair=True, answered=False)[0]["answer"] is None
    with pytest.raises(data.RecordError, match="a.jsonl:1: field 'answer'"):
        data.load_records(file, pair=True)  # training needs an answer


def test_the_table_puts_ours_below_the_papers(monkeypatch, tmp_path):
    paper = json.loads(paper_tables.NUMBERS.read_text())
    results = {
        source: run(monkeypatch, tmp_path / f"{source}_{mode}.json", source, mode, CRITIQUE if mode == "judge" else "\\boxed{2}")
        for source, mode in (("phycritic_bench", "judge"), ("vl_rewardbench", "judge"), ("roboreward", "question"))
    }
    text = "\n".join(paper_tables.judge_tables(results, paper))
    ours = next(line for line in text.splitlines() if line.startswith("| m (self_ref) (ours)"))
    cells = [cell.strip() for cell in ours.split("|")[1:-1]]
    assert cells[1].endswith("n=6") and cells[7].endswith("n=16")  # three pairs of agibot, eight in all, both orders
    assert cells[7].startswith("50.0 [") and cells[9].startswith("50.0 [") and " / " in cells[9] and cells[10] == "-"
    assert "| PhyCritic (paper) | 78.8 | 65.5 | 86.7 | 65.6 | 57.4 | 60.0 | 68.0 | 69.0 | 57.3 | 65.9 |" in text
    assert "n=9 / " in next(line for line in text.splitlines() if line.startswith("| m (ours)"))  # mean absolute error
    with pytest.raises(ValueError, match="second result"):
        paper_tables.judge_tables({"a": results["vl_rewardbench"], "b": results["vl_rewardbench"]}, paper)


def test_scripts_run_on_a_real_model(tmp_path):
    """Both command lines in a subprocess: convert, then a random tiny model answers three questions about the clips."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    model = tiny_critic.make_model(tmp_path / "model")
    words = [
        "evaluate.py",
        "--model",
        model,
        "--mode",
        "question",
        "--source",
        "cosmos_reason1",
        "--dataset",
        FIXTURES / "cosmos_reason1",
    ]
    words += ["--allow_rejected", "--limit", "3", "--max_new_tokens", "4", "--max_frames", "2", "--out", tmp_path / "eval/r.json"]
    done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rejected 1 x no such video" in done.stdout and "question accuracy" in done.stdout
    assert json.loads((tmp_path / "eval/r.json").read_text())["accuracy"]["n"] == 3
    words = [
        "-m",
        "data.sources",
        "--source",
        "judgebench",
        "--mode",
        "judge",
        "--dataset",
        FIXTURES / "judgebench",
        "--out",
        tmp_path / "jb",
    ]
    done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "pass --allow_rejected" in done.stderr
