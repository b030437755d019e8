"""The evidence as one static HTML page: results, figures, and a browser of judged cases. No server, no other file.

    make report                                            or, the same:
    python -m analysis.report --out runs/report.html

Reads experiments/ only: headline.json, the newest record of each kind, tables/, and the newest record of analysis/cases.py.
The sections are made by analysis/report_sections.py and analysis/report_ablations.py. Foreign text is escaped by the
template, and the page allows no script but its own and no request at all (Content-Security-Policy).
"""

import argparse
import base64
import hashlib
import sys
from pathlib import Path

import jinja2

from analysis import headline
from analysis.report_ablations import ablations
from analysis.report_sections import bench, choosing, dpo, load, mechanism, record, training
from data import write_whole

SECTIONS = (training, ablations, choosing, mechanism, dpo, bench)
TEMPLATE = Path(__file__).with_name("report.html.j2")


def summary(file):
    """{"rows": the results of headline.json as the README states them, "missing": labels of what is not measured yet}."""
    entries, rows = headline.read(file), []
    for name, label in headline.LABELS.items():
        if name in entries:
            line = headline.table({name: entries[name]})[-1]
            label, value, n = line.strip("| ").split(" | ")[:3]
            rows.append(entries[name] | {"label": label.replace("`", ""), "value": value, "n": n})
    return {"rows": rows, "missing": [label.replace("`", "") for name, label in headline.LABELS.items() if name not in entries]}


def shown(case, folder):
    """A case as the critic saw it: its frames inside the page, the responses in the order shown, each right or wrong.

    Raises ValueError where its order or preference is not one of the record's.
    """
    if case["order"] not in ("12", "21") or case["preference"] not in (1, 2):
        raise ValueError(f"{folder}/cases.json: {case['id']}: order {case['order']!r}, preference {case['preference']!r}")
    responses = [
        {
            "text": case[f"response_{number}"], "source": case[f"source_{number}"], "right": case["preference"] == int(number),
            "chosen": case["verdict"] == int(number),
        }
        for number in case["order"]
    ]  # fmt: skip
    image = base64.b64encode((folder / case["frames"]).read_bytes()).decode()
    facts = "; ".join(f"{name} {value}" for name, value in (case["facts"] or {}).items())
    place = case["verdict"] and case["order"].index(str(case["verdict"])) + 1
    frames = f"data:image/webp;base64,{image}"
    key = f"{case['id']}-{case['order']}"
    return case | {"key": key, "responses": responses, "frames": frames, "facts": facts, "verdict_shown": place}


def browser(folder):
    """What the case browser shows: the cases, their suites and kinds with counts, and how they were chosen."""
    made = load(folder / "cases.json")
    cases = [shown(case, folder) for case in made["cases"]]
    suites = sorted({case["suite"] for case in cases})
    return {
        "cases": cases, "suites": {s: sum(case["suite"] == s for case in cases) for s in suites},
        "kinds": {k: sum(case["kind"] == k for case in cases) for k in made["judged"]}, "judged": made["judged"],
        "how": made["how"], "command": made["command"], "commit": made["commit"], "evaluation": made["evaluation"],
    }  # fmt: skip


def own_script_only(script):
    """The hash by which a Content-Security-Policy allows this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode()


def render(results, sections, cases):
    """The page as text, from `summary`, sections of analysis/report_sections.py and `browser`."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["csp_hash"] = own_script_only
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(summary=results, sections=sections, browser=cases)


def page(experiments):
    """The whole page from the folder of experiments; raises ValueError or OSError where a record is missing or broken."""
    sections = [section(experiments) for section in SECTIONS]
    return render(summary(experiments / "headline.json"), sections, browser(record(experiments, "cases")))


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
