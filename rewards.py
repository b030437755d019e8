r"""Read completions and reward them: pure functions of strings, no model, no network, no torch.

The rewards are PhyCritic's (arXiv 2602.11124): stage 1 is r = 1[answer matches], stage 2 is
r = alpha_sp * r_sp + alpha_crit * r_crit + alpha_form * r_form. Each part is one function with TRL's reward
signature; the weights are the trainer's. No text of any content or length raises or takes more than linear time.
In every part, None means that the part does not apply to the row; a completion that cannot be read scores 0.0.
The critic's form and its verdict are read here, answers in answers.py.

>>> completion = r"<pred_think> it rolls </pred_think> <pred> B </pred> <think> 1 agrees </think> \boxed{Response 1}"
>>> parse_critique(completion)[:3]
('B', 1, 1.0)
"""
import html
import re
from typing import NamedTuple

import prompts
from answers.reading import AUXILIARY, answers_match, check_answer, extract_answer, read_options  # noqa: F401 - part of the interface
from answers.values import BOX, END_TOKEN, boxes, completion_text, plain, tagged, unlatex  # noqa: F401

# What a reward function returns where *external* evidence is missing: a served verifier that failed, another model's
# reply that cannot be read. The trainer then masks the whole row, so that it neither scores 0 nor moves its group's
# baseline. Not None, which says that the part does not apply, and not NaN, which TRL takes for None.
NOT_ADMITTED = float("-inf")

# --- Rewards, with TRL's signature --------------------------------------------------------------------------------


def accuracy_reward(prompts, completions, answer, options=None, preference=None, **kwargs):
    r"""Stage 1, r = 1[the completion's final answer matches]. None on a pair (a row with a preference).

    >>> accuracy_reward(None, [r"\boxed{9}", "no idea"], ["9", "9"])
    [1.0, 0.0]
    """
    rows = zip(completions, _column(answer, completions), _column(options, completions), _column(preference, completions))
    return [None if side is not None else float(answers_match(extract_answer(said, choices), truth, choices))
            for said, truth, choices, side in rows]


def self_prediction_reward(prompts, completions, answer, preference, options=None, self_reference=None, **kwargs):
    r"""r_sp = 1[<pred> matches the answer]. None on a question (preference None) and without self-reference.

    >>> self_prediction_reward(None, ["<pred> 9 </pred>"] * 2, ["9", "9"], [1, 1], self_reference=[True, False])
    [1.0, None]
    """
    rows = zip(completions, *(_column(column, completions) for column in (answer, preference, options, self_reference)))
    return [None if side is None or refers is False else float(answers_match(parse_critique(said).prediction, truth, choices))
            for said, truth, side, choices, refers in rows]


def judgement_reward(prompts, completions, preference, **kwargs):
    r"""r_crit = 1[verdict = preference]. None on a question (preference None); no verdict scores 0.0.

    >>> judgement_reward(None, [r"<think> x </think> \boxed{Response 2}"] * 3, [2, 1, None])
    [1.0, 0.0, None]
    """
    rows = zip(completions, _column(preference, completions))
    return [None if side is None else float(parse_critique(said).verdict == side) for said, side in rows]


def format_reward(prompts, completions, preference=None, self_reference=None, format="strict", **kwargs):
    r"""r_form of parse_critique, in {0, 0.5, 1}. None on a question (preference None in a data set that has the column).

    Without self-reference <think> and the box are the full format, 1.0; a <pred> nobody asked for changes nothing.

    >>> format_reward(None, [r"<think> x </think> \boxed{Response 2}"] * 2, [1, 1], self_reference=[True, False])
    [0.5, 1.0]
    """
    scores = [parse_critique(said, format).format_score for said in completions]
    rows = zip(scores, _column(preference, completions, 1), _column(self_reference, completions))
    return [None if side is None else float(score > 0) if refers is False else score for score, side, refers in rows]


def presence_format_reward(prompts, completions, **kwargs):
    """format_reward in the paper's literal reading: each tag and a box are somewhere in the text."""
    return format_reward(prompts, completions, **{**kwargs, "format": "presence"})


def _column(values, rows, default=None):
    """A data set's column as TRL hands it over, NaN (a table's empty cell) as None; the default in every row where the
    data set has no such column."""
    return [default] * len(rows) if values is None else [None if value != value else value for value in values]


# --- The critic's form --------------------------------------------------------------------------------------------


class Critique(NamedTuple):
    """What parse_critique reads: prediction and verdict are None where they cannot be read."""

    prediction: str | None
    verdict: int | None
    format_score: float
    pred_think: str | None
    think: str | None


def parse_critique(text, format="strict"):
    r"""Read a critic's completion: self-prediction, verdict, and r_form of the paper (section 3; facts.md), in {0, .5, 1}.

    strict: 1.0 for P, T and X, 0.5 for T and X, else 0, each part exactly once and with a letter or digit in it. P is
    <pred_think> then <pred>, both before <think>; T one <think> block; X one box after </think> with a readable verdict.
    presence: the paper's literal reading, each tag (not empty) and a box somewhere. Two predictions, or one that follows
    <think>, are refused: prediction None. What is copied from the prompt is no verdict.

    A reasoning model's own <think> ... </think> (or, opened by its template, ... </think>) is set aside first, where it
    leads the text and another <think> follows it: the form. Without that, a leading <think> is the form's own.

    >>> parse_critique(r"<think> x </think> \boxed{Response 2}")
    Critique(prediction=None, verdict=2, format_score=0.5, pred_think=None, think='x')
    >>> own = "<think> I look at both. </think>"
    >>> parse_critique(own + r"<pred_think> x </pred_think> <pred> B </pred> <think> y </think> \boxed{Response 2}")[:3]
    ('B', 2, 1.0)
    """
    if format not in ("strict", "presence"):
        raise ValueError(f"format is {format!r}: write strict or presence")
    text = PROMPT_ECHO.sub(" ", _without_own_thinking(completion_text(text)))
    parts = {tag: _once(text, tag) for tag in ("pred_think", "pred", "think")}
    opened = {tag: text.find(f"<{tag}>") for tag in parts}
    final = _without(_without(text.rpartition("</think>")[2], "pred_think"), "pred")  # a box in them is the prediction's
    in_boxes = boxes(final)
    verdict = parse_verdict(in_boxes[-1]) if in_boxes and not _is_empty_form(text) else None
    early = parts["pred"] and (opened["think"] < 0 or text.find("</pred>") < opened["think"])
    prediction = parts["pred"] if early else None
    if prediction and BOX.search(prediction):
        prediction = (boxes(prediction) or [None])[-1]
    if format == "strict":
        half = bool(verdict and _says_something(parts["think"]) and len(BOX.findall(final)) == 1)
        solved = _says_something(parts["pred_think"]) and _says_something(prediction)
        full = half and solved and text.find("</pred_think>") < opened["pred"]
    else:
        there = {tag: any(map(_says_something, tagged(text, tag))) for tag in parts}
        half = there["think"] and any(boxes(text))
        full = half and all(there.values())
    score = (1.0 if full else 0.5) if half else 0.0
    return Critique(prediction or None, verdict, score, parts["pred_think"], parts["think"])


# A sentence of the prompts that shows a box: a critic that repeats its instructions has decided nothing.
PROMPT_ECHO = re.compile("|".join(sorted(
    {r"\s+".join(map(re.escape, sentence.split())) for lines in prompts.VARIANTS.values() for line in lines
     for sentence in re.split(r"(?<=[.:])\s(?=[A-Z])", line) if "boxed" in sentence and "..." not in sentence})))
FILLER = re.compile(r"\\[lcv]?dots(?![A-Za-z])|</?[A-Za-z!][^<>]{0,200}>|\\(?:[dt]?frac|sqrt|quad|qquad)(?![A-Za-z])|_")


def _without_own_thinking(text):
    """The text behind a reasoning model's own leading </think>, where a form with another <think> follows it."""
    own, _, form = text.partition("</think>")
    leads = own.lstrip().startswith("<think>") or "<think>" not in own and "<pred_think>" not in own and "<pred>" not in own
    return form if leads and "<think>" in form else text


def _once(text, tag):
    """What stands between <tag> and </tag> where each occurs exactly once and in this order, else None."""
    if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
        return None
    return tagged(text, tag)[0]


def _without(text, tag):
    """The text with every <tag>...</tag> cut out."""
    first, *parts = text.split(f"<{tag}>")
    rest = (part.partition(close)[2] if (close := f"</{tag}>") in part else f"<{tag}>{part}" for part in parts)
    return first + "".join(rest)


def _says_something(part):
    """Is there a letter or a digit in a part: no "...", no "?", nothing that cannot be seen?"""
    said = FILLER.sub(" ", unlatex(html.unescape(part or "")))
    return any(character.isalnum() for character in said)


def _is_empty_form(text):
    """Is a text the prompt's form line, its parts not filled in: "<think> ... </think>"? Parts that are blank are not that."""
    parts = [part for tag in ("pred_think", "pred", "think") for part in tagged(text, tag)]
    return any(parts) and not any(map(_says_something, parts))


# --- Verdicts -----------------------------------------------------------------------------------------------------

CANDIDATE = re.compile(r"""
    # Response 1, answer number two, option (I)
    \b(?i: responses? | answers? | options? | choices? | candidates? | assistants? | models? | solutions? | outputs? )
    [\s_\#:\-]* (?i: no\. | number | is )? \s* [(\[]?\s*
    (?: (?P<digit> [12](?!\w|[.,/]?[0-9]) ) | (?i: (?P<word> one | two ) )\b | (?P<roman> I | II )\b ) [)\]]?
    # Response A; but answer A is an answer to the question
  | \b(?i: responses? | candidates? | assistants? | models? ) [\s_\-]* [(\[]?
    (?P<letter> [AB] | b | a(?=\s*(?:$|is\b|[.,;)])) ) (?![\w']) [)\]]?
    # the first one, second
  | \b(?i: (?:the\ )? (?P<order> first | second | 1st | 2nd )
      (?: \ (?: response | answer | one | candidate | solution | option )\b
        | (?= \s*(?: $ | [.,;!>)/]
            | (?: is | was | wins | beats | or | nor | and(?!\ foremost) | not | over | rather | than )\b ) ) ) )
    # the latter
  | \b(?i: (?:the\ )? (?P<of_two> former | latter )\b (?: \ (?: response | answer | one )\b )? )
    # #1, 2 is better, 1 > 2; but not 1.5 or 2 m
  | (?<![\w.\-])(?<![0-9]:) (?: (?i: no\. | number | \# )\ ?)? (?P<bare> [12] )
    (?= [)\]] | \s*(?: $ | [,;!?/&<>] | \.(?![0-9])
      | (?i: is | was | wins? | beats | over | or | and | vs | not | rather | instead | than | has | but )\b ))""", re.VERBOSE)
FIRST = {"1", "one", "i", "a", "first", "1st", "former"}
BETTER = re.compile(r"""
    \b(?: better | superior | stronger | best | prefer\w* | beats? | wins? | outperforms? | fewer\ (?:mistakes|errors)
        | over | rather\ than | instead\ of | more )\b
  | >(?!=) | [≻≫]""", re.I | re.VERBOSE)
WORSE = re.compile(r"""
    \b(?: worse | worst | inferior | weaker | poorer | loses? | less )\b
  | <(?!=)
  | (?: n't | \bnot )\ (?:\w+ly\ |quite\ )?(?:as|so)\b            # is not as good as""", re.I | re.VERBOSE)
REFUSED = re.compile(r"\b(?:not|cannot|never|neither|nor)\b|n't\b|\bno (?=better|more|worse)", re.I)
WRONG = re.compile(r"\b(?:wrong|incorrect|false|mistaken|bad|fails?|rejected|hallucinat\w+)\b", re.I)
TIE = re.compile(r"\b(?:ties?|tied|draw|equal|equally|undecided|unsure|uncertain|neither|either)\b", re.I)
VERDICT_CLAUSE = re.compile(r"""
    [,;.!?\n]+
  | \b(?: but | so | while | whereas | hence | thus | therefore )\b
  | \band\b(?=\s*§) | (?=\bnot\s*§)                               # § marks a candidate""", re.I | re.VERBOSE)
VERDICT_ASIDE = re.compile(r"""
    \b(?: between | of | comparing | among )\ *§[12]\ *(?:and|or)\ *§[12]
  | \b(?: compared\ (?:to|with) | unlike )\ *§[12]
  | \b(?: because | since | although | though | despite | even\ though )\b.*""", re.I | re.VERBOSE)
OTHER_NUMBER = re.compile(r"=|[03-9]|[12][0-9]")


def parse_verdict(text):
    r"""1 or 2, the response that a box prefers, or None where it names neither, both, or only what it refuses.

    "Response A" is the first, "the latter" the second; a bare letter is an answer to the question. What is worse leaves
    the other one; what is merely wrong or negated ("not Response 1") leaves no verdict.

    >>> [parse_verdict(said) for said in ["Response 1 is worse than Response 2", r"\text{2}", "A", "1/2", "not Response 1"]]
    [2, 2, None, None, None]
    """
    said = plain(text or "").replace("§", " ")
    named = list(CANDIDATE.finditer(said))
    if all(found["bare"] for found in named) and OTHER_NUMBER.search(said):
        return None  # a number that answers the question
    said = CANDIDATE.sub(_marked, said)
    if any(found["letter"] for found in named):
        said = re.sub(r"(?<![\w§])([AB])(?![\w'])", _marked_letter, said)
    said = VERDICT_ASIDE.sub(" ", AUXILIARY.sub(r"\1n't", " ".join(said.split())))
    votes = {_vote(clause) for clause in VERDICT_CLAUSE.split(said) if "§" in clause}
    kept = {vote for vote in votes if vote not in (-1, -2)}
    winner = min(kept) if len(kept) == 1 and not TIE.search(said) else 0
    return winner if winner and -winner not in votes else None


def _marked(found):
    """A candidate's name as §1 or §2."""
    name = next(filter(None, found.groups()))
    return f" §{1 if name.lower() in FIRST else 2} "


def _marked_letter(found):
    return "§1" if found[1] == "A" else "§2"


def _vote(clause):
    """What one clause says: 1 or 2 it prefers, -1 or -2 it refuses without preferring the other, 0 is undecided."""
    first, *others = dict.fromkeys(map(int, re.findall(r"§([12])", clause)))
    worse, better, refused = WORSE.search(clause), BETTER.search(clause), REFUSED.search(clause)
    if worse and re.match(r"n't|not", worse[0], re.I):  # "is not as good as"
        return 3 - first
    if others:
        return 0 if refused or bool(worse) == bool(better) else 3 - first if worse else first
    if worse and not refused:
        return 3 - first
    return -first if refused or WRONG.search(clause) else first
