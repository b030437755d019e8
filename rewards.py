r"""Read completions and reward them: pure functions of strings, no model, no network, no torch.

The rewards are PhyCritic's (arXiv 2602.11124): stage 1 is r = 1[answer matches], stage 2 is
r = alpha_sp * r_sp + alpha_crit * r_crit + alpha_form * r_form. Each part is one function with TRL's reward
signature; the weights are the trainer's. No text of any content or length raises or takes more than linear time.
In every part, None means that the part does not apply to the row; a completion that cannot be read scores 0.0.

>>> completion = r"<pred_think> it rolls </pred_think> <pred> B </pred> <think> 1 agrees </think> \boxed{Response 1}"
>>> parse_critique(completion)[:3]
('B', 1, 1.0)
"""
import functools
import json
import logging
import re
from fractions import Fraction
from typing import NamedTuple

LONGEST_ANSWER = 2000  # characters of a phrase that is still read as an answer or a verdict
LONGEST_TAIL = 4000  # characters at the end of a completion in which an unboxed answer is sought

# --- Boxes and tags -----------------------------------------------------------------------------------------------

END_TOKEN = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|<(?:eos|bos|pad|end_of_turn)>")
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\[{}]|[{}]")


def _text(completion):
    """The text of a completion, plain or conversational, without end tokens; "" for None."""
    if isinstance(completion, list):  # [{"role": "assistant", "content": "..." or [{"type": "text", "text": "..."}]}]
        completion = completion[-1].get("content") if completion else None
    if isinstance(completion, list):
        completion = "".join(part.get("text") or "" for part in completion)
    return END_TOKEN.sub(" ", completion or "")


def _boxes(text):
    """Contents of the outermost boxes in order, None for one that never closes; empty boxes (an echo) are left out."""
    stack, found = [], []  # the stack holds a box, or None for a plain brace
    for brace in BRACE.finditer(text):
        if brace["box"]:
            found.append([brace.end(), None])
            stack.append(found[-1])
        elif brace[0] == "{":
            stack.append(None)
        elif brace[0] == "}" and stack and (box := stack.pop()):
            box[1] = brace.start()
    contents, covered = [], 0
    for start, end in found:
        if start > covered:
            contents.append(text[start:end].strip() if end is not None else None)
            covered = end or covered
    return [content for content in contents if content is None or _plain(content)]


def _tagged(text, tag):
    """Contents of every <tag>...</tag> in order; None for an opening tag that is not closed before the next one."""
    parts = (part.partition(f"</{tag}>") for part in text.split(f"<{tag}>")[1:])
    return [inside.strip() if close else None for inside, close, _ in parts]


def _without(text, tag):
    """The text with every <tag>...</tag> cut out."""
    first, *parts = text.split(f"<{tag}>")
    rest = (part.partition(close)[2] if (close := f"</{tag}>") in part else f"<{tag}>{part}" for part in parts)
    return first + "".join(rest)


# --- Plain text ---------------------------------------------------------------------------------------------------

PUNCTUATION = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "−": "-", "：": ":", "，": ",", "。": ".", "µ": "μ",
                             "（": "(", "）": ")", "【": "[", "】": "]", "∕": "/", "⁄": "/", "\0": " "})
WRAPPER = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|bb|cal)|boldsymbol|bm|mbox|emph|operatorname"
                     r"|(?:display|text)style|left|right|[bB]igg?[lr]?|boxed|fbox|underline|ensuremath)(?![A-Za-z])\*?|\\[()\[\]]|\\?\$")
LATEX = [(re.compile(pattern), new) for pattern, new in [
    (r"(?<=[0-9])(?:\\[,!;:]|\{,\})(?=[0-9]{3})", ","),                  # 1\,000 and 1{,}000
    (r"\\[,;:!> ]|~|\\q?quad(?![A-Za-z])", " "),
    (r"\s*\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?|\\(?:degree|circ)(?![A-Za-z])", "°"),
    (r"\\times(?![A-Za-z])|\\cdot(?![A-Za-z])", "×"),
    (r"\\([%_#&])", r"\1"), (r"\\mu(?![A-Za-z])\s*", "μ"), (r"\\Omega(?![A-Za-z])", "Ω"),
    (r"\\gt(?![A-Za-z])|\\succ(?![A-Za-z])", ">"), (r"\\lt(?![A-Za-z])|\\prec(?![A-Za-z])", "<")]]
FRACTION = re.compile(r"(?<![0-9])\\[dtc]?frac\s*(?:\{\s*([0-9.]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9.]+)\s*\}|([0-9]))")


def _unlatex(text):
    """LaTeX dress taken off, line breaks kept; braces stay only where a command is left that needs them."""
    text = WRAPPER.sub("", text.translate(PUNCTUATION))
    for pattern, new in LATEX:
        text = pattern.sub(new, text)
    flat = FRACTION.sub(r"\1\2/\3\4", text)
    return text if "\\" in flat else flat.replace("{", "").replace("}", "")


def _plain(text):
    """One line without LaTeX and markdown dress, outer quotes and brackets, or a final mark; "" if far too long."""
    text = " ".join(text.split())
    return _undressed(text) if len(text) <= LONGEST_ANSWER else ""


@functools.lru_cache(maxsize=4096)
def _undressed(text):
    text = _unlatex(text)
    for _ in range(3):
        text = text.strip(" \t\n*_`\"'").rstrip(".,;:?\\").lstrip(":").strip()
        if text.endswith("!") and not text[-2:-1].isdigit():  # 5! is a factorial
            text = text.rstrip("!")
        if re.fullmatch(r"\([^(),]*\)|\[[^\[\],]*\]|<[^<>,]*>", text):
            text = text[1:-1]
    return text


def _key(text):
    """What has to agree for two texts to be the same: case, spaces and a leading article do not matter."""
    return re.sub(r"^(?:the|an?)\s+(?=\S)", "", re.sub(r", ?", ", ", " ".join(text.casefold().split())))


# --- Values: numbers, units, formulas -----------------------------------------------------------------------------

PLAIN_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
POWER_OF_TEN = r"10 ?\^ ?[({]?([+-]?[0-9]{1,3})[)}]?"
QUANTITY = re.compile(rf"([+-]?) ?(?:({PLAIN_NUMBER})(?:[eE]([+-]?[0-9]{{1,3}})| ?[×x*] ?{POWER_OF_TEN}| ?/ ?({PLAIN_NUMBER}))?"
                      rf"|{POWER_OF_TEN})(?![0-9]) ?([^\W\d_].*|[%°℃℉].*|)")
UNIT_WORDS = [(re.compile(pattern), new) for pattern, new in [
    (r"per ?cent|pct", "%"), (r"(?:°|degrees? |deg )C(?:elsius)?|℃", "degC"), (r"(?:°|degrees? |deg )F(?:ahrenheit)?|℉", "degF"),
    ("²", "^2"), ("³", "^3"), (r"⁻¹", "^-1"), (r"⁻²", "^-2"), (r"[·×]", "*"), (r"\*\*", "^"), (r"\b(mm|cm|km|m|s)([23])\b", r"\1^\2")]]
UNIT_ATOM = r"[A-Za-zμΩ°]{1,24}(?:\^[({]?-?[1-9][)}]?)?"
UNIT = re.compile(rf"{UNIT_ATOM}(?: ?[*/] ?{UNIT_ATOM}| {UNIT_ATOM}){{0,4}}")


def _quantity(text):
    """A number, exact, with what stands behind it, or None: "1/2 m" -> (Fraction(1, 2), "m")."""
    found = QUANTITY.fullmatch(text) if len(text) <= 100 else None
    if not found:
        return None
    sign, number, exponent, tens, divisor, lone_tens, unit = found.groups()
    number = Fraction((number or "1").replace(",", "").removesuffix(".")) * Fraction(10) ** int(exponent or tens or lone_tens or 0)
    divisor = Fraction((divisor or "1").replace(",", "").removesuffix("."))
    for pattern, new in UNIT_WORDS:
        unit = pattern.sub(new, unit)
    return ((-number if sign == "-" else number) / divisor, unit.strip()) if divisor else None


@functools.lru_cache(maxsize=1)
def _units():
    import pint

    return pint.UnitRegistry(), pint.PintError


@functools.lru_cache(maxsize=4096)
def _in_base_units(number, unit):
    """(magnitude, base unit) through pint, or None where the unit is unknown. Units keep their case: mW is not MW."""
    if not UNIT.fullmatch(unit):
        return None
    registry, error = _units()
    try:
        spelling = unit.lower() if len(unit) > 4 and unit.istitle() else unit  # Meters is meters, a word in full
        value = registry.Quantity(float(number), registry.parse_units(spelling)).to_base_units()
        return float(value.magnitude), str(value.units)
    except (error, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, AssertionError):
        return None


def _same_quantity(a, b):
    """Same number and same unit, or the same physical quantity; a number is neither its percentage nor its length."""
    (number_a, unit_a), (number_b, unit_b) = a, b
    if unit_a == unit_b:
        return number_a == number_b
    if not unit_a or not unit_b or "%" in (unit_a, unit_b):
        return False
    base_a, base_b = _in_base_units(number_a, unit_a), _in_base_units(number_b, unit_b)
    if base_a is None and base_b is None:  # three blocks: no physical unit
        return number_a == number_b and unit_a.casefold() == unit_b.casefold()
    if base_a is None or base_b is None or base_a[1] != base_b[1]:
        return False
    return abs(base_a[0] - base_b[0]) <= 1e-9 * max(abs(base_a[0]), abs(base_b[0]))


FORMULA = re.compile(r"(?:\\(?:[dt]?frac|sqrt|pi|theta|alpha|beta|lambda|omega|sin|cos|tan|ln|log|pm)(?![A-Za-z])"
                     r"|\^(?:\{-?(?:[0-9]{1,2}|[a-z])\}|[0-9](?![0-9])|[a-z])|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
                     r"|[0-9]{1,9}(?![0-9])|[π+\-*/=(){}.,× ])+")
FORMULA_LIMITS = [  # (pattern, how often it may occur): past these, sympy or its parser can run for minutes
    (r"\^", 2), (r"[)}] ?\^", 1), (r"[)}] ?\^ ?\{?-?(?:[4-9]|[0-9]{2}|[a-z])", 0), (r"\\(?:sin|cos|tan|ln|log)", 2), (r"\\", 6), (r"\(", 4)]


def _same_formula(a, b):
    """math-verify on two short formulas: no words, no tower of powers, nothing that could keep sympy busy."""
    a, b = (re.sub(r"\^(-?[0-9]{2})(?![0-9])", r"^{\1}", text) for text in (a, b))
    if not any(mark in a + b for mark in ("\\", "^", "π")):
        return False
    if any(len(t) > 60 or not FORMULA.fullmatch(t) or any(len(found) > most for found, most in
           ((re.findall(pattern, t), most) for pattern, most in FORMULA_LIMITS)) for t in (a, b)):
        return False
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of a missing timeout at every call
    a, b = (t.replace("π", r"\pi ").replace("×", r"\times ") for t in (a, b))
    a, b = (parse(f"${t}$", parsing_timeout=None) for t in (a, b))
    return bool(a and b) and verify(a, b, timeout_seconds=None)


@functools.lru_cache(maxsize=4096)
def _same_value(a, b):
    """Do two plain texts say the same: as text, number, quantity or formula?"""
    if a == b:
        return True
    quantity_a, quantity_b = _quantity(a), _quantity(b)
    if quantity_a and quantity_b:
        return _same_quantity(quantity_a, quantity_b)
    return _key(a) == _key(b) or _same_formula(a, b)


# --- Which option is meant ----------------------------------------------------------------------------------------

NOT_CJK = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # a letter may follow Chinese without a space
AUXILIARY = re.compile(r"\b(is|are|was|were|do|does|did|can|could|would|will|should|must|may|might|has|have)( \w+ly)? not\b", re.I)
NEGATION = re.compile(
    r"\bnot\b|n't\b|\b(?:cannot|never|neither|nor|rather than|instead of|except|excluding|other than|unlike|anything but|all but)\b"
    r"|\brul\w+ out\b|\b(?:eliminat|exclud|reject|discard|dismiss)\w*"
    r"|\b(?:is|are|was|were|looks?|seems?) (?:\w+ly )?(?:wrong|incorrect|false|out|impossible|invalid)\b", re.I)
CLAUSE = re.compile(r"[,;:!?()\[\]\n—–]+|\.(?![0-9])|(?<!anything )(?<!\ball )\bbut\b|\b(?:so|hence|thus|therefore|then)\b"
                    r"|(?=\bnot\b)|(?=\b(?:rather than|instead of)\b)", re.I)
AS_IT_IS = re.compile(r"(?!)")
BECAUSE = re.compile(r"(?<=.)[,;(]* ?\b(?:because|since|as|due to|given that)\b.*", re.I)
LEAD_IN = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|maybe|perhaps|probably|and|it'?s|it is|it must be|that is|that's"
    r"|i (?:would )?(?:think|believe|guess|choose|pick|select|say)|(?:(?:my|the) )?(?:(?:final|correct|best|right) )*"
    r"(?:answer|option|choice|letter)(?: is| must be| should be| would be|:)?)(?![\w'])[ ,:]*)+|^[a-z] ?= ?", re.I)
NOT_ARTICLE = "is|or|and|because|since|as|but|not|isn't|rather|instead|was|only|fits|seems|looks|matches|works|would|does|doesn't|cannot|can't|the|nor|over"
NOT_PRONOUN = "is|or|and|because|since|but|not|isn't|only|nor|fits|matches"


def read_options(options):
    """Options as {letter: text} or None, from a dict, its JSON text, or a dict with absent letters as None (Arrow).

    >>> read_options('{"A": "left", "B": null}')
    {'A': 'left'}
    """
    if isinstance(options, str):
        try:
            options = json.loads(options or "null")
        except json.JSONDecodeError:
            pass  # named below
    if options and not isinstance(options, dict):
        raise ValueError(f'options are {options!r}: write them as {{"A": "...", "B": "..."}}')
    return {str(key): str(text) for key, text in options.items() if text is not None} or None if options else None


@functools.lru_cache(maxsize=512)
def _patterns(keys):
    """(mention, dressed, listed, labelled): regular expressions for the letters of one set of options."""
    spelled = "|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True))
    single = "".join(re.escape(key) for key in keys if len(key) == 1) or "\0"
    later = {"A": rf"(?! (?!(?:{NOT_ARTICLE})\b)[a-z])", "I": rf"(?! (?!(?:{NOT_PRONOUN})\b)[a-z])"}
    mention = "|".join(re.escape(key.upper()) + later.get(key.upper(), "") for key in keys)
    return (re.compile(rf"(?<!{NOT_CJK})(?<![-'])(?:{mention})(?![A-Za-z0-9_'])(?!-[A-Za-z0-9])"),
            re.compile(rf"[\[(<] ?({spelled}) ?[\])>]", re.I),
            re.compile(rf"\b[{single}](?: ?, ?[{single}]\b)* ?,? ?\b(?:or|and|nor)\b [{single}]\b"),
            re.compile(rf"({spelled})( ?[.:),=\-–—]+ ?| )(\S.*)", re.I))


def _naming(phrase, options):
    """Keys of the options that a plain phrase names by letter or by text, the phrase being nothing else."""
    letters = {key for key in options if key == phrase} or {key for key in options if key.casefold() == phrase.casefold()}
    texts = {key: _plain(text) for key, text in options.items() if _plain(text)}
    polarity = _polarity(phrase)
    return (letters or {key for key, text in texts.items() if text == phrase}
            or {key for key, text in texts.items() if _same_value(phrase, text) or text.casefold() == polarity})


def _one_text(keys, options):
    return len({_key(_plain(options[key])) for key in keys}) == 1


def _words(text):
    return " " + " ".join(re.findall(r"\w+", _key(text))) + " "


def _chosen(phrase, options):
    """Keys of the options that a phrase settles on: a set, empty for a hedge, a negation or a contradiction (letter
    against text), None where no option is mentioned. More than one key only where these options have one text."""
    phrase = _plain(phrase)
    mention, dressed, listed, labelled = _patterns(tuple(options))
    for dress in (AS_IT_IS, LEAD_IN, BECAUSE):
        phrase = _plain(dress.sub("", phrase, count=1))
        if named := _naming(phrase, options):
            return named if _one_text(named, options) else set()
    phrase = dressed.sub(lambda found: found[1].upper(), phrase)
    if (label := labelled.fullmatch(phrase)) and (label[2] != " " or label[1].isupper()):
        letter, (_, mark, rest) = _naming(label[1], options), label.groups()
        if texts := _naming(_plain(rest), options):
            return letter & texts
        if "." in mark and re.match(r"(?!(?:Or|And|No|Wait|Actually)\b)[A-Z]\S* \S", rest):  # a new sentence explains
            return letter
        phrase = label[1].upper() + mark + rest
    phrase = listed.sub(lambda found: found[0].replace(",", " "), AUXILIARY.sub(r"\1n't", phrase))
    return _affirmed(phrase, options, mention)


def _affirmed(phrase, options, mention):
    """The options named in the clauses of a phrase that are not negated, as _chosen returns them."""
    upper, named, mentioned = {key.upper(): key for key in options}, set(), False
    for clause in filter(str.strip, CLAUSE.split(phrase)):
        letters = {upper[letter] for letter in mention.findall(clause)}
        negated = NEGATION.search(clause)
        texts = _naming(_plain(LEAD_IN.sub("", clause.strip(), count=1)), options) if not negated and len(clause) < 200 else set()
        if letters and not texts:  # "the red cup (C)"
            within = {key for key, text in options.items() if len(_words(text)) > 4 and _words(text) in _words(clause)}
            texts = within if not letters & within else set()
        mentioned = mentioned or bool(letters or texts)
        named |= set() if negated else letters | texts
    if not mentioned:
        return None
    return named if len(named) == 1 else set()


# --- Answers ------------------------------------------------------------------------------------------------------

CUE = re.compile(r"\b(?:answer|option|choice)(?: to (?:the|this|that) question)?[*_ ]*"
                 r"(?::|=|(?:is|was|(?:must|should|would|could|can|may|might|will|has to|seems to|appears to) be)\b(?!['’]))[:*_ \n]*", re.I)
RETRACTION = re.compile(r"\b(?:wait|actually|scratch that|correction|on second thought)\b[,:. ]*", re.I)
SENTENCE_END = re.compile(r"\n|(?<!\b[A-Za-z])[.!?。](?=\s)")
HEDGED_POLARITY = re.compile(r"(?:yes|no|true|false)\b\W*(?:(?:and|or|but)\W+)?(?:yes|no|true|false)\b"
                             r"|no (?:one|idea|way|clue|answer|evidence|information|doubt)\b", re.I)


def _polarity(text):
    """yes, no, true or false where a sentence begins with it and does not take it back, else None."""
    word = re.match(r"(yes|no|true|false)\b(?!['-])", text, re.I)
    return word[1].casefold() if word and not HEDGED_POLARITY.match(text) else None


def extract_answer(text, options=None):
    r"""The final answer of a completion, or None: the last box after </think> (of the whole text where none closes),
    else the last <answer>, else what follows the last cue ("the answer is"), else the end of the last line. A last box
    or tag that never closes is no answer, and no earlier one stands in for it.

    >>> extract_answer(r"\boxed{B} no wait, \boxed{\frac{3}{7}}")
    '\\frac{3}{7}'
    >>> extract_answer("The answer is B because A is wrong", {"A": "left", "B": "right"})
    'B'
    >>> extract_answer(r"<think> maybe \boxed{C} </think> I am not sure.", {"C": "the ramp"}) is None
    True
    """
    options, final = read_options(options), _text(text).rpartition("</think>")[2]
    if BOX.search(final):
        return (_boxes(final) or [None])[-1]
    if "<answer>" in final:
        return _tagged(final, "answer")[-1] or None
    if "<think>" in final:  # thinking that was cut off has said nothing final
        return None
    tail = _unlatex(final[-LONGEST_TAIL:]).replace("*", "").replace("`", "").strip()
    return _said_option(tail, options) if options else _said_value(tail)


def _said_option(tail, options):
    """The option stated after the last cue or retraction that states one, else by the last, else the first sentence."""
    starts = sorted(found.end() for pattern in (CUE, RETRACTION) for found in pattern.finditer(tail))[-8:]
    sentences = [sentence for sentence in SENTENCE_END.split(tail) if sentence.strip()] or [""]
    first = sentences[0] if _naming(_plain(re.split(r"[.):]\s", sentences[0] + " ")[0]), options) else ""
    for said in [SENTENCE_END.split(tail[start:].lstrip(), 1)[0] for start in reversed(starts)] + [sentences[-1], first]:
        chosen = _chosen(said, options)
        if chosen is not None:
            return min(chosen) if len(chosen) == 1 else said.strip() if chosen else None
    return None


def _said_value(tail):
    """What follows the last cue, else the last colon of the last line, else the sentence that begins with yes or no,
    else the last sentence."""
    if cues := list(CUE.finditer(tail)):
        said = BECAUSE.sub("", SENTENCE_END.split(tail[cues[-1].end():].lstrip(), 1)[0])
        return said.strip() or None
    if _polarity(tail):
        return tail
    line = tail.rpartition("\n")[2]
    if closing := re.search(r"[,;—] ?(?:(?:so|hence|thus) )?(yes|no|true|false)[.!]*$", line, re.I):
        return closing[1]
    said = re.split(r":\s", line)[-1]
    return (said if said != line else re.split(r"(?<=[.!?])\s", line)[-1]).strip() or None


def answers_match(prediction, answer, options=None):
    r"""Does a prediction (None: no answer) say the ground truth, given as an option's letter, its text, or a value?

    Letters and texts are read through the options; a hedge, a negation or a letter that contradicts its text never
    matches. Numbers are compared exactly, units by dimension and factor, formulas by math-verify.

    >>> answers_match(r"\textbf{(C)}", "C", {"B": "the cup", "C": "the ramp"}), answers_match("0.35 m", "35 cm")
    (True, True)
    >>> answers_match("A or C", "C", {"A": "the cup", "C": "the ramp"}), answers_match("50", "50%")
    (False, False)
    """
    if not prediction or not answer:
        return False
    options = read_options(options) or (dict.fromkeys("ABCDEFGHIJ", "") if re.fullmatch("[A-J]", _plain(answer)) else None)
    if options:
        said, truth = _chosen(prediction, options), _chosen(answer, options)
        return bool(said and truth and said & truth)
    said, truth = _plain(prediction), _plain(answer)
    if not said or not truth:
        return False
    if {said.casefold(), truth.casefold()} & {"yes", "no", "true", "false"} and _polarity(said):
        return _polarity(said) == _polarity(truth)
    return _same_value(said, truth) or _same_value(_plain(LEAD_IN.sub("", said)), truth)


def check_answer(answer, options=None):
    """Raise ValueError where a ground truth cannot be read: the loader's check, so that it never becomes a reward.

    >>> check_answer("E", {"A": "left", "B": "right"})
    Traceback (most recent call last):
    ValueError: answer 'E' names none of the options ['A', 'B']: write one letter or the text of one option
    """
    options = read_options(options)
    if not isinstance(answer, str):
        raise ValueError(f"answer {answer!r} is no text: write it as a string")
    if not _plain(answer):
        raise ValueError(f"answer {answer!r} is empty: give the record's answer, or drop the record")
    if options is None and re.fullmatch(r"[A-Z]", _plain(answer)):
        raise ValueError(f"answer {answer!r} is a letter without options: give the options, or the answer in words")
    if options and not _chosen(answer, options):
        raise ValueError(f"answer {answer!r} names none of the options {list(options)}: write one letter or the text of one option")
    if options and len(_chosen(answer, options)) > 1:
        raise ValueError(f"answer {answer!r} is the text of several options: write the letter that is meant")


# --- Verdicts -----------------------------------------------------------------------------------------------------

CANDIDATE = re.compile(
    r"\b(?i:responses?|answers?|options?|choices?|candidates?|assistants?|models?|solutions?|outputs?)[\s_#:\-]*(?i:no\.|number|is)?\s*"
    r"[(\[]?\s*(?:(?P<digit>[12](?!\w|[.,/]?[0-9]))|(?i:(?P<word>one|two))\b|(?P<roman>I|II)\b)[)\]]?"
    r"|\b(?i:responses?|candidates?|assistants?|models?)[\s_\-]*[(\[]?(?P<letter>[AB]|b|a(?=\s*(?:$|is\b|[.,;)])))(?![\w'])[)\]]?"
    r"|\b(?i:(?:the )?(?P<order>first|second|1st|2nd)(?: (?:response|answer|one|candidate|solution|option)\b|(?=\s*(?:$|is\b|was\b|wins\b|[.,;!>)]))))"
    r"|(?<![\w.\-])(?<![0-9]:)(?:(?i:no\.|number|#) ?)?(?P<bare>[12])(?=[)\]]|\s*(?:$|[,;!?/&<>]|\.(?![0-9])|(?i:is|was|wins?|beats|over|or|and|vs|not|rather|instead|than|has|but)\b))")
SIDE = {"1": 1, "one": 1, "I": 1, "A": 1, "a": 1, "first": 1, "1st": 1}
BETTER = re.compile(r"\b(?:better|superior|stronger|best|prefer\w*|beats?|wins?|outperforms?|fewer (?:mistakes|errors)|over|rather than|instead of|more)\b|>(?!=)|[≻≫]", re.I)
WORSE = re.compile(r"\b(?:worse|worst|inferior|weaker|poorer|loses?|less)\b|<(?!=)|(?:n't|\bnot) (?:\w+ly |quite )?(?:as|so)\b", re.I)
REFUSED = re.compile(r"\b(?:not|cannot|never|neither|nor)\b|n't\b|\bno (?=better|more|worse)", re.I)
WRONG = re.compile(r"\b(?:wrong|incorrect|false|mistaken|bad|fails?|rejected|hallucinat\w+)\b", re.I)
TIE = re.compile(r"\b(?:ties?|tied|draw|equal|equally|undecided|unsure|uncertain|neither|either)\b", re.I)
VERDICT_CLAUSE = re.compile(r"[,;.!?\n]+|\b(?:but|so|while|whereas|hence|thus|therefore)\b|\band\b(?=\s*§)|(?=\bnot\s*§)", re.I)
VERDICT_ASIDE = re.compile(r"\b(?:between|of|comparing|among) *§[12] *(?:and|or) *§[12]|\b(?:compared (?:to|with)|unlike) *§[12]"
                           r"|\b(?:because|since|although|though|despite|even though)\b.*", re.I)


def parse_verdict(text):
    r"""1 or 2, the response that a box prefers, or None where it names neither, both, or only what it refuses.

    "Response A" is the first; a bare letter is an answer to the question. What is worse leaves the other one; what is
    merely wrong or negated ("not Response 1") leaves no verdict.

    >>> [parse_verdict(said) for said in ["Response 1 is worse than Response 2", r"\text{2}", "A", "1/2", "not Response 1"]]
    [2, 2, None, None, None]
    """
    said = _plain(text or "").replace("§", " ")
    named = list(CANDIDATE.finditer(said))
    if all(found["bare"] for found in named) and re.search(r"=|[03-9]|[12][0-9]", said):
        return None  # a number that answers the question
    said = CANDIDATE.sub(lambda found: f" §{1 if SIDE.get(next(filter(None, found.groups())).lower()[:5]) or found['roman'] == 'I' else 2} ", said)
    if any(found["letter"] for found in named):
        said = re.sub(r"(?<![\w§])([AB])(?![\w'])", lambda found: f"§{SIDE.get(found[1], 2)}", said)
    said = VERDICT_ASIDE.sub(" ", AUXILIARY.sub(r"\1n't", " ".join(said.split())))
    votes = {_vote(clause) for clause in VERDICT_CLAUSE.split(said) if "§" in clause}
    kept = {vote for vote in votes if vote not in (-1, -2)}
    winner = min(kept) if len(kept) == 1 and not TIE.search(said) else 0
    return winner if winner and -winner not in votes else None


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


class Critique(NamedTuple):
    """What parse_critique reads: prediction and verdict are None where they cannot be read."""

    prediction: str | None
    verdict: int | None
    format_score: float
    pred_think: str | None
    think: str | None


def parse_critique(text, format="strict"):
    r"""Read a critic's completion: self-prediction, verdict, and r_form of the paper (section 3; facts.md), in {0, .5, 1}.

    strict: 1.0 for P, T and X, 0.5 for T and X, else 0, each part exactly once and not empty. P is <pred_think> then
    <pred>, both before <think>; T one <think> block; X one box after </think>. presence: the paper's literal reading,
    each tag and a box somewhere. Two predictions, or one that follows <think>, are refused: prediction None.

    >>> parse_critique(r"<think> x </think> \boxed{Response 2}")
    Critique(prediction=None, verdict=2, format_score=0.5, pred_think=None, think='x')
    """
    text = _text(text)
    parts = {tag: _once(text, tag) for tag in ("pred_think", "pred", "think")}
    opened = {tag: text.find(f"<{tag}>") for tag in parts}
    early = parts["pred"] and (opened["think"] < 0 or text.find("</pred>") < opened["think"])
    final = _without(_without(text.rpartition("</think>")[2], "pred_think"), "pred")  # a box in them is the prediction's
    boxes = _boxes(final)
    prediction = parts["pred"] if early else None
    if prediction and BOX.search(prediction):
        prediction = (_boxes(prediction) or [None])[-1]
    if format == "strict":
        half = bool(parts["think"] and len(BOX.findall(final)) == 1 and boxes and boxes[0])
        full = half and prediction and parts["pred_think"] and text.find("</pred_think>") < opened["pred"]
    elif format == "presence":
        half, full = (all(any(_tagged(text, tag)) for tag in tags) and any(_boxes(text)) for tags in (["think"], parts))
    else:
        raise ValueError(f"format is {format!r}: write strict or presence")
    score = (1.0 if full else 0.5) if half else 0.0
    return Critique(prediction or None, parse_verdict(boxes[-1]) if boxes else None, score, parts["pred_think"], parts["think"])


def _once(text, tag):
    """What stands between <tag> and </tag> where each occurs exactly once and in this order, else None."""
    if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
        return None
    return _tagged(text, tag)[0]


# --- Rewards, with TRL's signature --------------------------------------------------------------------------------


def _column(values, rows, default=None):
    """A data set's column as TRL hands it over; the default in every row where the data set has no such column."""
    return [default] * len(rows) if values is None else values


def accuracy_reward(prompts, completions, answer, options=None, preference=None, **kwargs):
    r"""Stage 1, r = 1[the completion's final answer matches]. None on a pair (a row with a preference).

    >>> accuracy_reward(None, [r"\boxed{9}", "no idea"], ["9", "9"])
    [1.0, 0.0]
    """
    rows = zip(completions, answer, _column(options, completions), _column(preference, completions))
    return [None if side is not None else float(answers_match(extract_answer(_text(said), choices), truth, choices))
            for said, truth, choices, side in rows]


def self_prediction_reward(prompts, completions, answer, preference, options=None, self_reference=None, **kwargs):
    r"""r_sp = 1[<pred> matches the answer]. None on a question (preference None) and without self-reference.

    >>> self_prediction_reward(None, ["<pred> 9 </pred>"] * 2, ["9", "9"], [1, 1], self_reference=[True, False])
    [1.0, None]
    """
    rows = zip(completions, answer, preference, _column(options, completions), _column(self_reference, completions))
    return [None if side is None or refers is False else float(answers_match(parse_critique(said).prediction, truth, choices))
            for said, truth, side, choices, refers in rows]


def judgement_reward(prompts, completions, preference, **kwargs):
    r"""r_crit = 1[verdict = preference]. None on a question (preference None); no verdict scores 0.0.

    >>> judgement_reward(None, [r"<think> x </think> \boxed{Response 2}"] * 3, [2, 1, None])
    [1.0, 0.0, None]
    """
    return [None if side is None else float(parse_critique(said).verdict == side) for said, side in zip(completions, preference)]


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
