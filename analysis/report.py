"""The evidence as one static HTML page: results, figures, and a browser of judged cases. No server, no other file.

    make report                                            or, the same:
    python -m analysis.report --out runs/report.html

Reads experiments/ only: the groups of results (analysis/headline.py), which stand first; then, each to be unfolded, the cases
of the newest record of analysis/cases.py, and sections on the newest record of each kind, made by analysis/report_sections.py.
Foreign text is escaped by the template, and the page allows no script but its own and no request at all (its
Content-Security-Policy).
"""

import argparse
import base64
import hashlib
import sys
from collections import Counter
from pathlib import Path

import jinja2

from analysis import headline
from analysis.report_sections import ablations, bench, choosing, dpo, load, mechanism, record, training
from data import write_whole

SECTIONS = (training, ablations, choosing, mechanism, dpo, bench)
TEMPLATE = Path(__file__).with_name("report.html.j2")


def shown(case, folder):
    """A case as the critic saw it: its frames inside the page, the responses in the order shown, each right or wrong.

    Raises ValueError where its order or preference is not one of the record's.
    """
    if case["order"] not in ("12", "21") or case["preference"] not in (1, 2):
        raise ValueError(f"{folder}/cases.json: {case['id']}: order {case['order']!r}, preference {case['preference']!r}")
    responses = []
    for k in map(int, case["order"]):
        marks = {"right": case["preference"] == k, "chosen": case["verdict"] == k}
        responses.append({"text": case[f"response_{k}"], "source": case[f"source_{k}"]} | marks)
    facts = "; ".join(f"{name} {value}" for name, value in (case["facts"] or {}).items())
    place = case["verdict"] and case["order"].index(str(case["verdict"])) + 1
    frames = "data:image/webp;base64," + base64.b64encode((folder / case["frames"]).read_bytes()).decode()
    key = f"{case['id']}-{case['order']}"
    return case | {"key": key, "responses": responses, "frames": frames, "facts": facts, "verdict_shown": place}


def browser(folder):
    """What the case browser shows: the cases, their suites and kinds with counts, and how they were chosen."""
    made = load(folder / "cases.json")
    cases = [shown(case, folder) for case in made["cases"]]
    suites, kinds = (Counter(case[name] for case in cases) for name in ("suite", "kind"))
    counts = {"suites": dict(sorted(suites.items())), "kinds": {kind: kinds[kind] for kind in made["judged"]}}
    return made | {"cases": cases} | counts


def own_script_only(script):
    """The hash by which a Content-Security-Policy allows this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()


def render(groups, sections, cases):
    """The page as text, from groups of results, sections of analysis/report_sections.py and `browser`."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["csp_hash"] = own_script_only
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(groups=groups, sections=sections, browser=cases)


def page(experiments):
    """The whole page from the folder of experiments; raises ValueError or OSError where a record is missing or broken."""
    sections = [section(experiments) for section in SECTIONS]
    return render(headline.groups(), sections, browser(record(experiments, "cases")))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("runs/report.html"), help="the page (default runs/report.html)")
    parser.add_argument("--experiments", type=Path, default=headline.ROOT / "experiments", help="the folder of records")
    args = parser.parse_args(argv)
    try:
        text = page(args.experiments)
    except (ValueError, OSError) as error:
        raise SystemExit(f"report: {error}") from error
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(args.out, text)
    print(f"{args.out}: {len(text.encode()) / 1e6:.2f} MB; open it in a browser")


if __name__ == "__main__":
    sys.exit(main())
