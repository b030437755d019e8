"""The report's ways to draw: dots with intervals, lines with bands, stacked bars; each as SVG that goes into the page.

Narrow enough for a phone. Black becomes the page's own text colour, so that a figure reads in light and in dark mode; the
other colours stand out from both. Values are percent where an axis says so. `what` begins the text for who does not see the
figure, and its numbers follow.
"""

import html
import io
import re
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#3b82c4", "#d06a12", "#2f9e60", "#d64550", "#8f6bd1", "#8a8a8a"
COLOURS = [BLUE, ORANGE, GREEN, PURPLE, RED, "#1f9ca6", "#a8843a", GREY]
WIDTH, HEIGHT = 3.8, 2.9  # inches: a figure as wide as a phone's screen keeps its letters legible
STYLE = {"svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "axes.titlesize": 9, "lines.linewidth": 1.6}
STYLE |= {"legend.fontsize": 8, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False}
STYLE |= {"axes.grid": True, "axes.axisbelow": True, "grid.color": GREY, "grid.alpha": 0.3, "grid.linewidth": 0.6}
STYLE |= {"figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none"}


def told(rows):
    """What dots or bars show, as words.

    >>> told({"base": [("judge", 49.44, 48, 50)], "full": [("judge", 90, 88, 92)]})
    'base: judge 49.4; full: judge 90.0'
    """
    words = {label: ", ".join(f"{name} {value:.1f}" for name, value, *_ in entries) for label, entries in rows.items()}
    return "; ".join(f"{label}: {each}" for label, each in words.items())


def ends_of(drawn):
    """First and last point of each line, as words.

    >>> ends_of({"(oracle)": [(1, 63.1, 60, 66), (32, 98, 97, 99)]})
    'oracle 63.1 at 1, 98 at 32'
    """
    ends = [(label.strip("()"), *points[0][:2], *points[-1][:2]) for label, points in drawn.items()]
    return "; ".join(f"{label} {first:.3g} at {start:.3g}, {last:.3g} at {end:.3g}" for label, start, first, end, last in ends)


def canvas(height=HEIGHT):
    """A figure and its axes, in the report's style."""
    with plt.rc_context(STYLE):
        return plt.subplots(figsize=(WIDTH, height), layout="constrained")


def finish(figure, axis, alt, caption, legend=True):
    """{"svg", "alt", "caption"}: the figure as SVG without ids that nothing refers to; closes the figure."""
    buffer = io.StringIO()
    with plt.rc_context(STYLE | {"svg.hashsalt": alt + caption}):  # ids differ between the figures of a page, not between runs
        if legend:
            handles, labels = axis.get_legend_handles_labels()
            once = dict(zip(labels, handles))
            columns = 1 if max(map(len, once)) > 22 or len(once) == 1 else 2
            figure.legend(once.values(), once.keys(), loc="outside upper left", ncols=columns)
            figure.set_figheight(figure.get_figheight() + 0.16 * (len(once) // columns - 1))  # its lines take none of the axes
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL).replace("#000000", "currentColor")
    used = set(re.findall(r"#([\w-]+)[\")]", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    box = re.search(r'viewBox="[^"]*"', text)[0]
    body = text[text.index("<svg") :].partition(">")[2]
    return {"svg": f'<svg {box} role="img" aria-label="{html.escape(alt)}">{body}', "alt": alt, "caption": caption}


def dots(rows, xlabel, what, caption, words=None, limits=None, line=None):
    """Horizontal dots with intervals. `rows`: label -> [(series, value, low, high), ...], drawn from above downwards."""
    most = max(map(len, rows.values()))
    figure, axis = canvas(0.9 + len(rows) * max(0.3, 0.1 * most))
    series = list(dict.fromkeys(name for entries in rows.values() for name, *_ in entries))
    for place, entries in enumerate(rows.values()):
        for i, (name, value, low, high) in enumerate(entries):
            y = place + (i - (len(entries) - 1) / 2) * 0.7 / most
            error = [[max(0, value - low)], [max(0, high - value)]]
            colour = COLOURS[series.index(name) % len(COLOURS)]
            axis.errorbar([value], [y], xerr=error, fmt="o", ms=3.5, lw=1.2, color=colour, label=name)
    axis.set_yticks(range(len(rows)), [textwrap.fill(label, 20) for label in rows])  # long ones leave the dots no room
    axis.set(xlabel=xlabel, ylim=(len(rows) - 0.5, -0.5), xlim=limits)
    axis.grid(axis="y", visible=False)
    if line is not None:
        axis.axvline(line, color=GREY, lw=1, ls="--")
    return finish(figure, axis, f"{what} {words or told(rows)}.", caption, legend=len(series) > 1)


def lines(series, xlabel, ylabel, what, caption, log=False, log_y=False, limits=None, ticks=None):
    """Lines with bands. `series`: label -> [(x, value, low, high), ...]; a label in parentheses is drawn dashed."""
    figure, axis = canvas()
    for colour, (name, points) in zip(COLOURS * 2, series.items()):
        x, value, low, high = zip(*points)
        dashed = name.startswith("(")
        marker, label = "" if len(x) > 30 or dashed else "o", name[1:-1] if dashed else name
        axis.plot(x, value, color=colour, ls="--" if dashed else "-", marker=marker, ms=3.5, label=label)
        axis.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
        if len(x) == 1:  # a band has no width there
            axis.vlines(x, low, high, color=colour, lw=1.2)
    axis.set(xlabel=xlabel, ylabel=ylabel, ylim=limits)
    if log:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    if log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    if ticks:
        axis.set_xticks(ticks)
    return finish(figure, axis, f"{what} {ends_of(series)}.", caption)


def bars(rows, xlabel, what, caption, colours=COLOURS):
    """Stacked horizontal bars. `rows`: label -> {part: length}, parts in the same order and colour in each."""
    figure, axis = canvas(1.0 + 0.3 * len(rows))
    left = np.zeros(len(rows))
    for colour, part in zip(colours, next(iter(rows.values()))):
        lengths = [lengths[part] for lengths in rows.values()]
        axis.barh(range(len(rows)), lengths, left=left, color=colour, height=0.7, label=part)
        left = left + lengths
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set(xlabel=xlabel, ylim=(len(rows) - 0.5, -0.5))
    axis.grid(axis="y", visible=False)
    words = told({label: [part for part in lengths.items() if part[1]] for label, lengths in rows.items()})
    return finish(figure, axis, f"{what} {words}.", caption)
