"""The report: which cases it shows, that its page is sound HTML, and that it works in a real browser.

The browser's tests need Chromium (`apt-get install chromium-headless-shell`, which `make test` tries where it may) and are
skipped without it; all others parse the page.
"""

import base64
import hashlib
import html
import html.parser
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import evaluate
from analysis import cases, headline, pages, report, report_figures
from analysis import report_sections as sections
from analysis.ablation_page import EVALUATIONS
from analysis.mechanism import FAILURES
from evaluate import EvaluateConfig
from judging import judges
from judging.models import Completion

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium-headless-shell")
EXPERIMENTS = headline.ROOT / "experiments"
HOSTILE = "<script>window.hacked = 'a'</script><img src=x onerror=\"window.hacked = 'b'\"> & \"quoted\" {{ 7 * 7 }} </article>"
VOID = {"meta", "link", "img", "br", "input", "hr"}
GROUPS = [  # what analysis/headline.py gathers, 12 groups of one to four results
    {
        "title": f"Group {i}",
        "rows": [{"label": f"label {i}.{k}", "text": f"{i}{k}.4 [1{i}.3, 92.{k}] %", "n": 1000 * i + k} for k in range(1 + i % 4)],
        "command": f"python -m analysis.command_{i}",
        "record": f"experiments/record_{i}",
    }
    for i in range(12)
]
RECORDED = getattr(headline, "groups", None)
needs_groups = pytest.mark.skipif(RECORDED is None, reason="analysis/headline.py gathers no groups yet")
RECORDED_PAGE = pytest.param("recorded_page", marks=needs_groups)


@pytest.fixture(scope="module", autouse=True)
def groups():
    """The page's results, whatever is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headline, "groups", lambda: GROUPS, raising=False)
        yield

# ----------------------------------------------------------------------------------------------------- which cases it shows


def critique(prediction, verdict):
    own = f"<pred_think> I see it </pred_think> <pred> {prediction} </pred>"
    return f"{own} <think> compared </think> \\boxed{{Response {verdict}}}"


WRITTEN = {  # question -> (what the critic writes when the right response is shown first, the kind that this is)
    "Plain?": (critique("red", 1), "right"),
    "Luck?": (critique("blue", 1), "solved wrong, judged right"),
    "Followed?": (critique("blue", 2), "solved wrong, followed it"),
    "Neither?": (critique("green", 2), "solved wrong, judged wrong otherwise"),
    "Knew?": (critique("red", 2), "solved right, judged wrong"),
    HOSTILE: (f"no tags but {HOSTILE}", "unreadable"),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A finished evaluation of a critic that does all that a critic can do, each in both orders; its result's path."""
    folder = tmp_path_factory.mktemp("judged")
    for i in range(2):
        Image.new("RGB", (56, 40), (200 * i, 9, 90)).save(folder / f"f{i}.png")
    answers = ["It is red. \\boxed{red}", f"{HOSTILE} \\boxed{{blue}}"]
    record = {"options": None, "answer": "red", "frames": ["f0.png", "f1.png"], "source_1": "a", "source_2": HOSTILE}
    with (folder / "pairs.jsonl").open("w") as lines:
        for i, question in enumerate(WRITTEN):
            place = i % 2  # of the right response
            pair = {"response_1": answers[place], "response_2": answers[1 - place], "preference": 1 + place}
            pair |= {"id": f"q{i}", "suite": f"suite{i % 3}", "question": question, "facts": {"ball": "<b>"}}
            lines.write(json.dumps(record | pair) + "\n")

    def complete(model, processor, asked, *rest):
        return [Completion(written(prompt[-1]["content"][-1]["text"]), 30, 20) for prompt in asked]

    def written(prompt):
        text = next(text for question, (text, _) in WRITTEN.items() if question[:5] in prompt or question == HOSTILE)
        first = "<response_1>\nIt is red" in prompt
        return text if first else text.translate({ord("1"): "2", ord("2"): "1"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judges, "load_model", lambda path: (None, None))
        patch.setattr(judges, "complete", complete)
        out = folder / "judge.json"
        evaluate.evaluate(EvaluateConfig("critic", "judge", str(out), dataset=str(folder / "pairs.jsonl")))
    return out


@pytest.fixture(scope="module")
def record(judged, tmp_path_factory):
    """The cases of that evaluation as a record."""
    out = tmp_path_factory.mktemp("experiments") / "2026-11-30_cases"
    cases.main([str(judged), str(out), "--n", "10"])
    return out


def test_each_kind_of_judgement_becomes_a_case_of_its_kind(record):
    made = json.loads((record / "cases.json").read_text())
    assert {case["question"]: case["kind"] for case in made["cases"]} == {q: kind for q, (_, kind) in WRITTEN.items()}
    assert {kind: sum(by.values()) for kind, by in made["judged"].items()} == dict.fromkeys(FAILURES, 2)  # both orders
    assert "over-represented" in made["how"] and made["command"].startswith("python -m analysis.cases") and made["commit"]
    with Image.open(record / made["cases"][0]["frames"]) as strip:
        assert strip.size == (56 + cases.GAP + 56, 40) and strip.convert("RGB").getpixel((60, 5)) == (200, 9, 90)  # lossless


def test_a_case_is_shown_as_the_critic_saw_it(record):
    made = json.loads((record / "cases.json").read_text())
    for case in made["cases"]:
        shown = report.shown(case, record)
        right_first = shown["responses"][0]["text"].startswith("It is red")
        assert shown["responses"][0]["right"] == right_first == (case["order"][0] == str(case["preference"]))
        if case["verdict"]:  # the number that the critic wrote is that of the response it was shown there
            assert f"Response {shown['verdict_shown']}" in case["text"]
            assert shown["responses"][shown["verdict_shown"] - 1]["chosen"]
        else:
            assert shown["verdict_shown"] is None and not any(response["chosen"] for response in shown["responses"])


judgements = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["12", "21"]), st.sampled_from(FAILURES)),
    unique_by=lambda row: row[:2],
    max_size=60,
)


@settings(deadline=None)
@given(judgements, st.integers(5, 40), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_choice_is_a_pair_once_failures_first_whatever_the_order_of_the_rows(drawn, n, seed, rng):
    rows = [{"id": str(i), "order": order, "kind": kind, "suite": "abc"[i % 3]} for i, order, kind in drawn]
    chosen = cases.choose(rows, n, seed)
    count, there = Counter(row["kind"] for row in chosen), {row["id"] for row in rows}
    assert len({row["id"] for row in chosen}) == len(chosen) <= n
    assert all(count[kind] <= n // 5 for kind in FAILURES if kind != "right")
    left = {row["id"] for row in rows if row["kind"] == "right"} - {row["id"] for row in chosen}
    assert len(chosen) == n or not left, "right judgements fill what failures leave"
    assert len(there) >= len(chosen)
    mixed = rng.sample(rows, len(rows))
    assert cases.choose(mixed, n, seed) == chosen


def test_the_suites_take_turns():
    rows = [{"id": f"{suite}{i}", "order": "12", "suite": suite} for suite in "abc" for i in range({"a": 30}.get(suite, 2))]
    assert Counter(row["suite"] for row in cases.spread(rows, 0)[:6]) == {"a": 2, "b": 2, "c": 2}
    assert cases.spread(rows, 0) != cases.spread(rows, 1)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"finished": False}, "no finished evaluation"),
        ({"config": {"mode": "question"}}, "no finished evaluation"),
        ("pairs", "has changed since"),
    ],
)
def test_an_evaluation_that_does_not_fit_is_refused(judged, tmp_path, change, message):
    result, rows = json.loads(judged.read_text()), judged.with_suffix(".jsonl").read_text()
    if change == "pairs":
        for file in judged.parent.glob("f*.png"):
            shutil.copy(file, tmp_path)
        text = Path(result["config"]["dataset"]).read_text().replace("Plain?", "Other?")
        (tmp_path / "pairs.jsonl").write_text(text)
        change = {"config": result["config"] | {"dataset": str(tmp_path / "pairs.jsonl")}}
    (tmp_path / "judge.json").write_text(json.dumps(result | change))
    (tmp_path / "judge.jsonl").write_text(rows)
    with pytest.raises(SystemExit, match=message):
        cases.main([str(tmp_path / "judge.json"), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------- the page, parsed


class Parsed(html.parser.HTMLParser):
    """Tags with their attributes, and the text within each element; fails on tags that do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append((tag, len(self.tags) - 1))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1:]}, at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data):
        for _, place in self.open:
            self.texts.setdefault(place, []).append(data)

    def having(self, tag, **attributes):
        """[(attributes, text)] of the elements with this tag and these attributes."""
        return [
            (found, "".join(self.texts.get(place, [])))
            for place, (name, found) in enumerate(self.tags)
            if name == tag and all(found.get(key) == value for key, value in attributes.items())
        ]


@pytest.fixture(scope="module")
def page(tmp_path_factory, groups):
    """The page that `make report` makes."""
    out = tmp_path_factory.mktemp("page") / "runs" / "report.html"
    report.main(["--out", str(out)])
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def recorded_page(record):
    """A page with the results that are recorded."""
    return report.render(RECORDED(), [], report.browser(record))


@pytest.fixture(scope="module")
def hostile_page(record):
    """A page whose cases and results, and a section of which, hold hostile text."""
    figure = report_figures.dots({HOSTILE[:25]: [("a", 1, 0, 2)]}, HOSTILE, HOSTILE, HOSTILE)
    section = {"id": "one", "title": HOSTILE, "source": "x", "text": [HOSTILE], "figures": [figure]}
    section["tables"] = [{"title": HOSTILE, "cells": [["", HOSTILE], [HOSTILE, HOSTILE]]}]
    result = {"label": HOSTILE, "text": HOSTILE, "n": 1}
    group = {"title": HOSTILE, "rows": [result] * 3, "command": HOSTILE, "record": HOSTILE}
    return report.render([group], [section], report.browser(record))


@pytest.mark.parametrize("which", ["page", "hostile_page", RECORDED_PAGE])
def test_the_page_is_sound_and_asks_for_nothing(which, request):
    text = request.getfixturevalue(which)
    parsed = Parsed(text)
    assert len(text.encode()) < 5e6
    for tag, found in parsed.tags:
        for name in ("src", "href", "xlink:href", "data", "action", "poster", "srcset"):
            assert re.match("#|data:", found.get(name) or "#"), f"<{tag} {name}={found[name]!r}> asks for something"
        assert not any(name.startswith("on") for name in found), f"<{tag}> has a handler: {found}"
        assert "url(" not in found.get("style", "").replace("url(#", ""), found["style"]
    assert all(found.get("alt") for tag, found in parsed.tags if tag == "img")
    assert all(found.get("role") == "img" and found.get("aria-label") for tag, found in parsed.tags if tag == "svg")
    ids = Counter(found["id"] for _, found in parsed.tags if "id" in found)
    assert max(ids.values()) == 1, ids.most_common(3)
    for tag, found in parsed.tags:
        for name in ("for", "aria-labelledby"):
            assert name not in found or found[name] in ids
        assert found.get("href", "#")[1:2] == "" or found["href"].startswith("data:") or found["href"][1:] in ids
    assert [found["type"] for found, _ in parsed.having("button")] == ["button", "button"]
    assert parsed.having("p", id="counter", **{"aria-live": "polite"})
    assert sum("hidden" not in found for found, _ in parsed.having("article")) == 1, "one case is shown, without script too"


def test_the_only_script_is_the_one_that_the_policy_allows(hostile_page):
    parsed = Parsed(hostile_page)
    [(_, script)] = parsed.having("script")
    [(policy, _)] = parsed.having("meta", **{"http-equiv": "Content-Security-Policy"})
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy["content"] and "default-src 'none'" in policy["content"]


def test_hostile_text_is_text_wherever_it_stands(hostile_page):
    parsed = Parsed(hostile_page)
    [(_, case)] = [found for found in parsed.having("article") if found[0]["data-kind"] == "unreadable"]
    assert case.count(HOSTILE) >= 4, "question, response, source, and what the critic wrote"
    assert "49" not in case and "(not readable)" in case
    for tag in ("h2", "p", "caption", "figcaption", "summary", "td", "code"):
        assert any(HOSTILE in text for _, text in parsed.having(tag)), tag
    assert any(found.get("aria-label", "").startswith(HOSTILE) for found, _ in parsed.having("svg"))


def test_every_group_of_results_is_a_line_that_opens(page):
    parsed = Parsed(page)
    found = parsed.having("details", **{"class": "group"})
    assert len(found) == 12 and all("open" not in attributes for attributes, _ in parsed.having("details"))
    lines = [text for _, text in parsed.having("summary")]
    for group, (_, text), line in zip(GROUPS, found, lines):
        assert group["title"] in line and all(row["label"] in line and row["text"] in line for row in group["rows"][:2])
        assert (f"{len(group['rows']) - 2} more" in line) == (len(group["rows"]) > 2) and group["command"] not in line
        for row in group["rows"]:
            assert row["label"] in text and row["text"] in text and str(row["n"]) in text
        assert group["command"] in text and group["record"] in text


@needs_groups
def test_the_recorded_results_are_those_of_the_readme(recorded_page):
    readme, text = (headline.ROOT / "README.md").read_text(encoding="utf-8"), html.unescape(recorded_page)
    for group in RECORDED():
        assert group["title"] in text and group["command"] in text and all(row["text"] in text for row in group["rows"])
        assert group["title"] in readme and all(row["text"] in readme for row in group["rows"])


def test_the_committed_cases_are_many_of_every_suite_and_small():
    folder = sections.record(EXPERIMENTS, "cases")
    made = json.loads((folder / "cases.json").read_text())
    assert 100 <= len(made["cases"]) <= 150 and len({case["suite"] for case in made["cases"]}) == 6
    assert sum(case["kind"] != "right" for case in made["cases"]) >= 50
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 2e6


# -------------------------------------------------------------------------------------------------------- its sections


def run_row(run, seed, value):
    """A row of experiments/run.py, as far as the report reads it."""
    metrics = {"metrics": {"accuracy": {"value": value, "low": value - 0.01, "high": value + 0.01, "n": 100}}}
    return {"id": f"{run}/{seed}", "run": run, "seed": seed, "evaluations": dict.fromkeys(EVALUATIONS, metrics)}


@pytest.fixture
def matrix(tmp_path):
    """A folder of experiments with the matrix's plan and no result."""
    for name in ("tables.yaml", "paper_numbers.json"):
        shutil.copy(EXPERIMENTS / name, tmp_path)
    (tmp_path / "tables").mkdir()
    return tmp_path


def write_rows(matrix, *rows):
    (matrix / "tables" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_matrix_that_has_not_run_says_what_is_missing(matrix):
    made = sections.ablations(matrix)
    assert made["figures"] == made["tables"] == [] and "0 runs are there" in made["text"][0] and "no_r_sp" in made["text"][0]


def test_a_matrix_in_progress_shows_what_is_there(matrix):
    write_rows(matrix, run_row("base", 0, 0.5), run_row("two_stages", 0, 0.9), run_row("two_stages", 1, 0.875))
    made = sections.ablations(matrix)
    assert "3 runs are there" in made["text"][0] and "two_stages (seed 2)" in made["text"][0] and "base" not in made["text"][0]
    [strategy] = made["figures"]  # no other table has two rows
    assert "two stages: questions 90.0, questions 87.5" in strategy["alt"] and "reverse" not in strategy["alt"]
    assert "Not there yet" in strategy["caption"] and "two stages" in strategy["caption"].split("Not there yet")[1]
    [table] = made["tables"]
    assert table["cells"][2][:3] == ["two stages", "68.0 / 63.9 / 57.3", "90.0 [89.0, 91.0]; 87.5 [86.5, 88.5]"]


def test_a_whole_matrix_shows_its_tables_findings_and_scaling(matrix):
    import yaml

    plan = yaml.safe_load((matrix / "tables.yaml").read_text())
    write_rows(matrix, *(run_row(run, seed, 0.7) for run in plan["runs"] for seed in plan["seeds"]))
    made = {"tables": {"T": [["", "Paper"], ["base", "51.6"]]}, "findings": ["Hold: 1 of 2.", "", "- mixed"], "left_out": ""}
    (matrix / "tables" / "tables.json").write_text(json.dumps(made))
    shown = sections.ablations(matrix)
    assert len(shown["text"]) == 1 and "missing" not in shown["text"][0] and shown["findings"] == ["Hold: 1 of 2.", "- mixed"]
    assert shown["tables"] == [{"title": "T", "cells": [["", "Paper"], ["base", "51.6"]]}]
    assert "GRPO 70 at 10, 70 at 100; supervised judge 70 at 10, 70 at 100" in shown["figures"][-1]["alt"]


def test_a_missing_record_or_table_is_named(tmp_path):
    with pytest.raises(SystemExit, match="report: .* no record <date>_three_seeds"):
        report.main(["--experiments", str(tmp_path), "--out", str(tmp_path / "report.html")])
    assert not (tmp_path / "report.html").exists()
    shutil.copytree(sections.record(EXPERIMENTS, "dpo"), tmp_path / "2026-12-01_dpo")
    (tmp_path / "2026-12-01_dpo" / "README.md").write_text("# no table\n")
    with pytest.raises(ValueError, match="2026-12-01_dpo/README.md has no table"):
        sections.dpo(tmp_path)


def test_the_newest_record_counts_and_a_longer_name_is_another_record(tmp_path):
    for name in ("2026-11-30_tournaments", "2027-01-01_tournaments", "2028-01-01_tournaments_recorded"):
        (tmp_path / name).mkdir()
    assert sections.record(tmp_path, "tournaments").name == "2027-01-01_tournaments"


def test_tables_are_read_from_a_records_page(tmp_path):
    text = "# T\n\n| | b |\n|---|---|\n| 1 | |\n\n## Two\n\nwords\n\n| c |\n|:-:|\n| 2 |\n\n| a second table |\n|---|\n"
    (tmp_path / "README.md").write_text(text)
    assert pages.markdown_tables(tmp_path / "README.md") == {"": [["", "b"], ["1", ""]], "Two": [["c"], ["2"]]}


def test_a_figure_comes_out_the_same_twice_and_takes_the_pages_colour():
    first, again = (report_figures.dots({"a_$b$": [("x", 1, 0, 2), ("y", 3, 2, 4)]}, "%", "alt", "caption") for _ in range(2))
    assert first == again and "currentColor" in first["svg"] and "#000000" not in first["svg"] and "a_$b$" in first["svg"]
    other = report_figures.dots({"a": [("x", 1, 0, 2)]}, "%", "alt", "another")
    ids = [set(re.findall(r' id="([^"]+)"', figure["svg"])) for figure in (first, other)]
    assert not ids[0] & ids[1], "ids of two figures of a page do not meet"


# ----------------------------------------------------------------------------------------------------- in a real browser


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, tmp_path):
    """visit(text, hash, **context) -> the page open at file://; in the end no console error and no request but that file."""
    errors, requests, contexts = [], [], []

    def open_page(text, place="", width=1280, **how):
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        contexts.append(chromium.new_context(viewport={"width": width, "height": 844}, **how))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(f"file://{tmp_path}/report.html{place}")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert errors == [] and {url.partition("#")[0] for url in requests if not url.startswith("data:")} == {
        f"file://{tmp_path}/report.html"
    }


def now(tab):
    """The case on show: its key and kind, and what the counter says."""
    tab.wait_for_function("document.querySelectorAll('article.case:not([hidden])').length === 1")
    case = tab.locator("article.case:visible")
    counter = tab.inner_text("#counter")
    return SimpleNamespace(key=case.get_attribute("data-key"), kind=case.get_attribute("data-kind"), counter=counter)


@needs_browser
def test_filter_step_and_return_by_the_address(page, visit):
    tab = visit(page, "#cases")
    total = len(report.browser(sections.record(EXPERIMENTS, "cases"))["cases"])
    first = now(tab)
    assert first.counter.startswith(f"Case 1 of {total}: ")
    tab.keyboard.press("ArrowRight")
    second = now(tab)
    assert second.key != first.key and second.counter.startswith("Case 2 of ")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")  # before the first is the last
    assert now(tab).counter.startswith(f"Case {total} of {total}: ")
    tab.click("#next")
    assert now(tab).key == first.key
    tab.select_option("#kind", "solved wrong, judged right")
    lucky = now(tab)
    some = int(re.search(r"of (\d+)", lucky.counter)[1])
    assert lucky.kind == "solved wrong, judged right" and 0 < some < total
    for _ in range(some):
        tab.click("#next")
        assert now(tab).kind == lucky.kind
    assert now(tab).key == lucky.key, "once around"
    tab.select_option("#suite", "perception")
    tab.click("#next")
    here, address = now(tab), tab.evaluate("location.hash")
    assert here.counter.endswith("solved wrong, judged right, perception") and here.key in address
    again = visit(page, address)
    assert now(again) == here and again.input_value("#suite") == "perception"


@needs_browser
def test_arrows_within_a_list_a_bad_address_and_an_empty_choice(page, visit):
    tab = visit(page, "#case=no-such-case&suite=none")
    assert now(tab).counter.startswith("Case 1 of ") and tab.input_value("#suite") == ""
    before = now(tab)
    tab.click("nav a[href='#mechanism']")  # unfolds it
    tab.focus("#mechanism .scroll >> nth=0")
    tab.keyboard.press("ArrowRight")
    assert now(tab) == before, "there it scrolls the wide table"
    tab.focus("#suite")
    tab.keyboard.press("ArrowRight")
    assert tab.input_value("#suite") == "affordance" and now(tab).key == before.key, "there it chooses the next suite"
    tab.select_option("#suite", "")
    tab.select_option("#kind", "unreadable")
    assert tab.inner_text("#counter") == "Case 0 of 0" and tab.is_visible("#none") and not tab.is_visible("article.case")
    tab.keyboard.press("ArrowRight")
    tab.select_option("#kind", "")
    assert now(tab).counter.startswith("Case ")
    tab.click("nav a[href='#ablations']")
    assert now(tab) and tab.is_visible("#ablations .figures"), "a section's anchor is no case, and unfolds it"


@needs_browser
@pytest.mark.parametrize("which", ["page", RECORDED_PAGE])
def test_the_first_screen_holds_all_groups_of_results(which, request, visit):
    lines = visit(request.getfixturevalue(which)).locator(".group > summary")
    assert lines.count() == 12 and lines.last.bounding_box()["y"] + lines.last.bounding_box()["height"] < 844


@needs_browser
def test_the_rest_unfolds(page, visit):
    tab = visit(page)
    lines = tab.locator(".group > summary")
    assert not tab.is_visible("#cases") and not tab.is_visible("#training") and not tab.is_visible(".group table")
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("location.hash") == "", "no case moves while they are folded"
    lines.nth(3).click()
    assert tab.is_visible(f"text={GROUPS[3]['command']}") and not tab.is_visible(f"text={GROUPS[2]['command']}")
    tab.click("summary:has(#cases-title)")
    assert now(tab).counter.startswith("Case 1 of ")
    tab.emulate_media(media="print")
    assert tab.is_visible("#mechanism") and tab.is_visible(f"text={GROUPS[2]['command']}"), "paper cannot be unfolded"


@needs_browser
def test_hostile_text_is_shown_and_does_nothing(hostile_page, visit):
    tab = visit(hostile_page, "#kind=unreadable")
    assert now(tab).kind == "unreadable"
    assert tab.inner_text("article.case:visible h3 >> nth=0") == HOSTILE
    tab.click("article.case:visible summary")
    assert HOSTILE in tab.inner_text("article.case:visible details")
    assert tab.evaluate("window.hacked === undefined")


@needs_browser
@pytest.mark.parametrize("which", ["page", "hostile_page", RECORDED_PAGE])
def test_a_phone_shows_it_without_sideways_scrolling(which, request, visit):
    tab = visit(request.getfixturevalue(which), width=390)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390, "with everything unfolded"
    assert tab.locator("#next").bounding_box()["height"] >= 40


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_from_their_ground(page, scheme, visit):
    tab = visit(page, color_scheme=scheme)
    colours = tab.evaluate("""() => {
      const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
      const body = of("body", "backgroundColor"), card = of("figure", "backgroundColor");
      const own = (selector) => [of(selector, "color"), of(selector, "backgroundColor")];
      return [own("body"), own(".mark.good"), own(".mark.bad"), own(".box.chosen"), own("button"), [of("nav a", "color"), body],
              [of("figcaption", "color"), card], [of("figure svg text", "fill"), card]];
    }""")
    for text, ground in colours:
        assert contrast(text, ground) >= 4.5, (text, ground)


def contrast(*colours):
    """Contrast of two CSS colours rgb(r, g, b) as WCAG 2.2 defines it, 1 to 21."""
    lights = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(lights) / min(lights)


@needs_browser
def test_keyboard_focus_is_seen_print_shows_the_case_and_no_script_shows_all(page, visit):
    tab = visit(page, "#cases")
    tab.focus("#kind")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "previous"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("ArrowRight")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.locator("article.case:visible").count() == 1 and not tab.is_visible("#next") and not tab.is_visible("nav")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    still = visit(page, java_script_enabled=False)
    assert still.locator("article.case:visible").count() == still.locator("article.case").count() > 100
