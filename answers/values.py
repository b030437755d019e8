r"""What a text says, without its dress: plain words, a number, a quantity with a unit. Pure functions of strings.

>>> plain(r"\textbf{(Ｃ)}."), same_value(r"1\frac{1}{4}", "5/4"), same_value("0.35 m", "35 cm"), same_value("x=4", "y=4")
('C', True, True, False)
"""
import functools
import re
import unicodedata
from fractions import Fraction

from answers import exact, formulas

LONGEST_ANSWER = 2000  # characters of a phrase that is still read as an answer or a verdict

# --- Unicode ------------------------------------------------------------------------------------------------------


def _spelled(kind):
    """{character: what it stands for} of the characters that Unicode calls a <kind> form of others."""
    found = {}
    for code in range(0x80, 0x3000):
        form, *parts = unicodedata.decomposition(chr(code)).split() or [""]
        if form == f"<{kind}>" and code not in (0xAA, 0xBA, 0x2120, 0x2122):  # ª and º, service and trade mark
            found[chr(code)] = "".join(chr(int(part, 16)) for part in parts)
    return found


RAISED, LOWERED, BROKEN = _spelled("super"), _spelled("sub"), _spelled("fraction")
RAISED_RUN, LOWERED_RUN, BROKEN_ONE = (re.compile(f"[{re.escape(''.join(known))}]{many}") for known, many in
                                       ((RAISED, "+"), (LOWERED, "+"), (BROKEN, "")))
SQUARED_UNIT = re.compile("[\u33a0-\u33a6\u33a8\u33af]")  # ㎡ and its kin hold a raised digit
INVISIBLE = re.compile(  # of Unicode's class Cf, and letters that are blank
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u20e3\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef]")
PUNCTUATION = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "−": "-", "‐": "-", "。": ".", "µ": "μ", "º": "°",
                             "【": "[", "】": "]", "∕": "/", "⁄": "/", "\0": " "})


def normal(text):
    r"""Unicode's compatibility form (NFKC) without what is invisible; a raised digit stays a power: x² is x^{2}, not x2.

    >>> normal("Ｂ"), normal("x¹⁰"), normal("1½"), normal("log₂8"), normal("B\u200b")
    ('B', 'x^{10}', '1\\frac{1}{2}', 'log_{2}8', 'B')
    """
    if text.isascii():
        return text.replace("\0", " ")
    text = SQUARED_UNIT.sub(_one_step, text.replace("º", "°"))
    text = BROKEN_ONE.sub(_fraction, LOWERED_RUN.sub(_lowered, RAISED_RUN.sub(_raised, text)))
    return INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).translate(PUNCTUATION)


def _one_step(found):
    return "".join(chr(int(code, 16)) for code in unicodedata.decomposition(found[0]).split()[1:])


def _raised(found):
    return "^{" + "".join(RAISED[character] for character in found[0]) + "}"


def _lowered(found):
    return "_{" + "".join(LOWERED[character] for character in found[0]) + "}"


def _fraction(found):
    top, _, bottom = BROKEN[found[0]].partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}" if bottom else found[0]


# --- LaTeX and markdown -------------------------------------------------------------------------------------------

WRAPPER = re.compile(r"""
    \\(?: text(?:bf|it|rm|sf|tt|normal)? | math(?:rm|bf|it|sf|tt) | boldsymbol | bm | mbox | emph | operatorname  # fonts
        | (?:display|text)style | left | right | [bB]igg?[lr]? | boxed | fbox | underline | ensuremath )(?![A-Za-z])\*?
  | \\[()\[\]]                                    # the marks around a formula
  | \$ (?![0-9.,]+(?![0-9.,$]|[^$]*\$))           # a dollar that is not a price""", re.VERBOSE)
VECTOR = re.compile(r"\\(?:mathbf|boldsymbol|bm)(?=\s*\{[A-Za-z]\})")  # of two vectors there are two products
LATEX = [(re.compile(pattern), new) for pattern, new in [
    (r"\\\$ ?(?=[0-9])|\$(?=[0-9])", "USD "),                            # a price
    (r"(?<=[0-9])(?:\\[,!;:]|\{,\})(?=[0-9]{3}(?![0-9]))", ","),         # 1\,000 and 1{,}000
    (r"\\[,;:!> ]|~|\\q?quad(?![A-Za-z])", " "),
    (r"\s*\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?|\\(?:degree|circ)(?![A-Za-z])", "°"),
    (r"\\times(?![A-Za-z])", "×"), (r"\\cdot(?![A-Za-z])", "·"),
    (r"\\([%_#&])", r"\1"),
    (r"\\mu(?![A-Za-z])\s*", "μ"),
    (r"\\Omega(?![A-Za-z])", "Ω"),
    (r"\\gt(?![A-Za-z])|\\succ(?![A-Za-z])", ">"),
    (r"\\lt(?![A-Za-z])|\\prec(?![A-Za-z])", "<")]]
PIECE = re.compile(r"\\[A-Za-z]+|\\.|[{}^_\]]|\s+|[^\\{}^_\]\s]+|\\", re.S)
EDGES = [(re.compile(pattern, re.S), new) for pattern, new in [
    (r"^(?:\*\*|__|`|\s)+|(?:\*\*|__|`|\s|\\)+$", ""),                    # markdown, also where one end of it is left
    (r"^([*_\"'])([^\n]*)\1$", r"\2"),                                    # a pair: f' and A* keep their mark
    (r"(?<=[^\W\d_])\"$|^\"(?=[^\W\d_])", ""),
    (r"^:+\s*|[,;:?\s]+$|(?<!\.)\.$", ""),
    (r"^([^\W\d_][^,]*?)\.{2,}$", r"\1"),                                 # B...; 0.3... and 1, 2, ... go on
    (r"(?<=[^\W\d_]{2})!+$", ""),                                         # n! is a factorial
    (r"^(?:\(([^(),;]*)\)|\[([^\[\],;]*)\]|<([^<>,;]*)>)$", r"\1\2\3")]]


def unlatex(text):
    """LaTeX dress taken off, line breaks kept; braces stay only where they hold a power, an index or an argument."""
    text = normal(text)
    text = VECTOR.sub(r"\\vec", text) if r"\times" in text or r"\cdot" in text else text
    text = WRAPPER.sub("", text)
    for pattern, new in LATEX:
        text = pattern.sub(new, text)
    return _without_idle_braces(text) if "{" in text or "}" in text else text


def _without_idle_braces(text):
    kept, out, before = [], [], ""
    for piece in PIECE.findall(text):
        if piece == "{":
            kept.append(before in ("^", "_", "]", "kept") or bool(re.match(r"\\[A-Za-z]", before)))
            before = piece
            piece = piece if kept[-1] else ""
        elif piece == "}":
            stays = bool(kept) and kept.pop()
            before = "kept" if stays else before
            piece = piece if stays else ""
        elif not piece.isspace():
            before = piece
        out.append(piece)
    return "".join(out) + "}" * sum(kept)


def plain(text):
    """One line without LaTeX and markdown dress, outer quotes and brackets, or a final mark; "" if far too long."""
    text = " ".join(text.split())
    return _undressed(text) if len(text) <= LONGEST_ANSWER else ""


@functools.lru_cache(maxsize=4096)
def _undressed(text):
    text = re.sub(r"^\$+([^$]*)\$+$", r"\1", text.strip())
    text = re.sub(r"^\{([^{}]*,[^{}]*)\}$", r"\\{\1\\}", text)  # a set, its braces not escaped
    text = " ".join(unlatex(text).split())
    for _ in range(3):
        for pattern, new in EDGES:
            text = pattern.sub(new, text)
    return text.strip()


CHEMICAL = re.compile(r"(?:[A-Z][a-z]?(?:_[0-9]|_\{[0-9]{1,3}\})?){2,9}")  # H_2O is H2O
FORMULA_MARK = re.compile(r"[\\^=_+*/|<>{}0-9]")


def key(text):
    """What has to agree for two texts to be the same: spaces and a leading article do not matter, nor do capitals, but
    for symbols of one or two letters beside a digit or a mark: F=ma is not F=MA."""
    text = re.sub(r"(?<![0-9]),|, |,(?![0-9])", ", ", " ".join(text.split())).replace(",  ", ", ")
    text = re.sub(r"[_{}]", "", text) if CHEMICAL.fullmatch(text) else text
    text = re.sub(r"[^\W\d_]{3,}", lambda word: word[0].casefold(), text) if FORMULA_MARK.search(text) else text.casefold()
    return re.sub(r"^(?:the|an?)\s+(?=\w\w)", "", text, flags=re.I)


# --- Boxes and tags -----------------------------------------------------------------------------------------------

END_TOKEN = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|<(?:eos|bos|pad|end_of_turn)>")
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\[{}]|[{}]")


def completion_text(completion):
    """The text of a completion, plain or conversational, without end tokens; "" for None."""
    if isinstance(completion, list):  # [{"role": "assistant", "content": "..." or [{"type": "text", "text": "..."}]}]
        completion = completion[-1].get("content") if completion else None
    if isinstance(completion, list):
        completion = "".join(part.get("text") or "" for part in completion)
    return END_TOKEN.sub(" ", completion or "")


def boxes(text):
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
            contents.append(normal(text[start:end]).strip() if end is not None else None)
            covered = end or covered
    return [content for content in contents if content is None or plain(content)]


def tagged(text, tag):
    """Contents of every <tag>...</tag> in order; None for an opening tag that is not closed before the next one."""
    parts = (part.partition(f"</{tag}>") for part in text.split(f"<{tag}>")[1:])
    return [normal(inside).strip() if close else None for inside, close, _ in parts]


# --- Numbers and units --------------------------------------------------------------------------------------------

PLAIN_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
TENS = r"10\ ?\^\ ?[({]?([+-]?[0-9]{1,3})[)}]?"
QUANTITY = re.compile(rf"""(USD\ )? ([+-]?)\ ?
    (?: ([0-9]{{1,60}})\ (?:and\ )?([0-9]{{1,60}})\ ?/\ ?([0-9]{{1,60}})     # 1 1/4
      | ({PLAIN_NUMBER})
        (?: [eE]([+-]?[0-9]{{1,3}})                             # 3e8
          | \ ?[×·x*]\ ?{TENS}                                   # 3 x 10^8
          | \ ?/\ ?({PLAIN_NUMBER}) )?                          # 5/4
      | {TENS} )                                                # 10^8
    (?![0-9])\ ?( [^\W\d_].* | [%°℃℉].* | )""", re.VERBOSE)
FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([0-9.]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9.]+)\s*\}|([0-9]))")
UNIT_WORDS = [(re.compile(pattern), new) for pattern, new in [
    (r"per ?cent|pct", "%"),
    (r"(?:°|degrees? |deg )C(?:elsius)?|℃", "degC"),
    (r"(?:°|degrees? |deg )F(?:ahrenheit)?|℉", "degF"),
    (r"[·×]", "*"), (r"\*\*", "^"), (r"[{}]", ""),
    (r"\b(mm|cm|km|m|s)([23])\b", r"\1^\2"),
    (r"^(?:US )?dollars?$", "USD")]]
UNIT_ATOM = r"[A-Za-zμΩ°]{1,24}(?:\^[({]?-?[1-9][)}]?)?"
UNIT = re.compile(rf"{UNIT_ATOM}(?: ?[*/] ?{UNIT_ATOM}| {UNIT_ATOM}){{0,4}}")


def _number(said):
    return Fraction(said.replace(",", "").removesuffix("."))


@functools.lru_cache(maxsize=4096)
def quantity(text):
    r"""A number, exact, with the unit that stands behind it ("" for none), or None.

    >>> quantity("1/2 m"), quantity(r"1\frac{1}{4}"), quantity("3 x 10^8 m/s")[1], quantity("1 5/4"), quantity("4 = x")
    ((Fraction(1, 2), 'm'), (Fraction(5, 4), ''), 'm/s', None, None)
    """
    if len(text) > 100:
        return None
    found = QUANTITY.fullmatch(FRACTION.sub(r" \1\2/\3\4", text).strip())
    if not found:
        return None
    price, sign, whole, top, bottom, number, exponent, tens, divisor, lone_tens, unit = found.groups()
    divisor = _number(bottom or divisor or "1")
    value = _number(top or number or "1") * Fraction(10) ** int(exponent or tens or lone_tens or 0)
    if not divisor or whole and value >= divisor or price and unit:
        return None
    value = value / divisor + int(whole or 0)
    for pattern, new in UNIT_WORDS:
        unit = pattern.sub(new, unit)
    return -value if sign == "-" else value, "USD" if price else unit.strip()


@functools.lru_cache(maxsize=1)
def _units():
    import pint

    return pint.UnitRegistry(non_int_type=Fraction)


@functools.lru_cache(maxsize=4096)
def _in_base_units(number, unit):
    """(exact magnitude, base units) through pint, or None where the unit is unknown. Units keep their case: mW is not MW."""
    if not UNIT.fullmatch(unit):
        return None
    spelling = unit.lower() if len(unit) > 4 and unit.istitle() else unit  # Meters is meters, a word in full
    try:
        value = _units().Quantity(number, _units().parse_units(spelling)).to_base_units()
        return Fraction(value.magnitude), tuple(sorted(value.unit_items()))
    except Exception:  # noqa: BLE001 - whatever pint raises at words that are no unit: there is no list of it
        return None


def _same_quantity(a, b):
    """Same number and same unit, or the same physical quantity; a number is neither its percentage nor its length."""
    (number_a, unit_a), (number_b, unit_b) = a, b
    if unit_a == unit_b or unit_a.casefold() == unit_b.casefold() in ("am", "pm"):  # of the clock, not attometres
        return number_a == number_b
    if not unit_a or not unit_b or "%" in (unit_a, unit_b):
        return False
    base_a, base_b = _in_base_units(number_a, unit_a), _in_base_units(number_b, unit_b)
    if base_a is None and base_b is None:  # three blocks: no physical unit
        return number_a == number_b and key("0 " + unit_a) == key("0 " + unit_b)
    return base_a is not None and base_a == base_b


# --- The same value -----------------------------------------------------------------------------------------------

NAMED = re.compile(r"""
    ( (?:\\Delta\ ?)? \\?[^\W\d_][A-Za-z]{0,20}     # x, \theta, speed
      (?:_(?:\w|\{[^{}=]{1,30}\}))?                 # v_0, v_{max}
      (?:\([a-z](?:,\ ?[a-z])*\))? )                # f(x)
    \ ?=\ ?([^=<>,;≤≥≠]+)""", re.VERBOSE)


@functools.lru_cache(maxsize=4096)
def same_value(a, b):
    r"""Do two plain texts say the same: as text, number, quantity or formula? A name before a value counts where both have one.

    >>> same_value("x = 4", "4"), same_value("x = 4", "y = 4"), same_value("(1,4.5)", r"(1,\frac{9}{2})"), same_value("5!", "5")
    (True, False, True, False)
    """
    if a == b:
        return True
    named_a, named_b = NAMED.fullmatch(a), NAMED.fullmatch(b)
    if named_a and named_b and key("0" + named_a[1]) == key("0" + named_b[1]):
        return same_value(named_a[2].strip(), named_b[2].strip())
    if bool(named_a) != bool(named_b):
        value_a, value_b = (named[2].strip() if named else text for named, text in ((named_a, a), (named_b, b)))
        return same_value(value_a, value_b) or _same_formula(a, b) is True
    return _same_unnamed(a, b)


def _same_unnamed(a, b):
    quantity_a, quantity_b = quantity(a), quantity(b)
    if quantity_a and quantity_b:
        same, units = _same_quantity(quantity_a, quantity_b), {quantity_a[1], quantity_b[1]}
        if same or all(unit in ("", "%") or _in_base_units(Fraction(1), unit) for unit in units):
            return same  # else what stands behind the number may be letters of a formula
    formula = _same_formula(a, b)
    if formula is not None:
        return formula
    if key(a) != key(b) or a.casefold() != b.casefold():
        return key(a) == key(b)
    base_a, base_b = _in_base_units(Fraction(1), a), _in_base_units(Fraction(1), b)
    return base_a is None or base_b is None or base_a == base_b  # mW is not MW


def _same_formula(a, b):
    """None where neither is read as a formula, or one is not: then their letters decide."""
    read_a, read_b = formulas.read(a), formulas.read(b)
    return exact.same(read_a, read_b) if read_a and read_b else None
