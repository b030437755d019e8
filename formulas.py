r"""Are two formulas the same? An exact reading of short LaTeX or plain text; no sympy, no time limit, no tolerance that shows.

A formula that is not understood to its last character is not read at all. Two that are read are the same where they
agree at every point of a fixed sample at which both are real numbers: letters stand for real numbers of either sign, so
\sqrt{1/n} is \frac{1}{\sqrt{n}}, and \sqrt{x^2} is not x. Rational values are compared exactly; a root, a sine or pi is
computed to 4,000 bits, sizes past 2^600 are refused, and so no difference of two short formulas is lost.

>>> same(read(r"\sqrt{1/n}"), read(r"\frac{1}{\sqrt{n}}")), same(read(r"4\sqrt(2)"), read("4")), read("4 or 5") is None
(True, False, True)
"""
import functools
import math
import random
import re
from fractions import Fraction

LONGEST = 400  # characters of a formula
DEEPEST = 20  # brackets in one another
MOST_FUNCTIONS = 8  # of roots, logarithms, sines and powers that are no plain number: a millisecond each and point
MOST_BITS = 20_000  # of a numerator or denominator
PRECISION, LARGEST, NOISE, TOLERANCE = 4000, 600, -1900, -2500  # bits: of a number, of its size, what counts as 0, as equal


class Unreadable(ValueError):
    """Not a formula that is understood to its last character, or too large to be computed exactly."""


class Undefined(ArithmeticError):
    """No real number at this point."""


# --- Reading ------------------------------------------------------------------------------------------------------
# A formula becomes nested tuples: ("number", value), ("name", text), ("+", a, b), ("list", "()", items), ("relation", signs, sides)

TOKEN = re.compile(r"""\s*(?:
    (?P<repeating> [0-9]*\.[0-9]*\\(?:overline|bar)\{[0-9]+\})        # 0.1\overline{6}
  | (?P<number> (?!0[0-9])[0-9]+(?:\.[0-9]*)? | \.[0-9]+)             # 4.5; 000 is half of a number with a separator
  | (?P<name> (?:d\ ?|\\[Dd]elta(?![A-Za-z])\ ?)?                     # dx and \Delta x are one symbol, not a product
      (?:[A-Za-z](?![A-Za-z])|\\GREEK(?![A-Za-z])|[α-ωΑ-Ω])
      (?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9 ,]{1,20}\}))?)
  | \\(?P<command> [A-Za-z]+|[{}|])
  | (?P<word> [A-Za-z]+)
  | (?P<symbol> <=|>=|!=|[-+*/^_!=<>(),;|{}\[\]]))""".replace(
    "GREEK", "(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    "|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega)"), re.VERBOSE)
SPELLINGS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": "<=",
                           "≥": ">=", "≠": "!=", "∪": r"\cup ", "±": r"\pm ", "∓": r"\mp "})
COMMANDS = {"le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "div": "/",
            "{": "set", "}": "end", "lbrace": "set", "rbrace": "end", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "|": "|",
            "lvert": "|", "rvert": "|", "vert": "|", "lt": "<", "gt": ">"}
FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"}
KNOWN = FUNCTIONS | {"frac", "sqrt", "pi", "infty", "cup", "langle", "rangle"} | set(COMMANDS.values())
ENGLISH = set("am an and any are as at be but by cat cup did do far few for get go got had has hit if in is it its let low me my new no "
              "nor not now of off on one or out per ran red run saw set so the to too top two up us was we yes you".split())
CLOSING = {"(": ")]", "[": "])", "set": ["end"], "{": "}", "langle": ["rangle"]}
RELATIONS = {"=", "!=", "<", "<=", ">", ">="}
ARITHMETIC = re.compile(r"[-+]?[0-9 .]+(?:[-+*]|/[0-9 .]+[-+*/])[-+*/0-9 .]*")  # 3-5 may be a range, 2*3 a size, 1/2/3 a date
SEPARATED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


def _tokens(text):
    """(kind, text) pairs; a short run of letters is their product, a longer one is prose."""
    tokens, place = [], 0
    while place < len(text.rstrip()):
        found = TOKEN.match(text, place)
        if not found:
            raise Unreadable(text[place:])
        tokens += _named(found.lastgroup, found[found.lastgroup], text)
        place = found.end()
    return tokens


def _named(kind, said, text):
    if kind == "repeating":
        return [("number", _repeating(said))]
    if kind == "number":
        return [("number", said)]
    if kind == "name":
        return [("name", re.sub(r"[ {}]", "", said))]
    said = COMMANDS.get(said, said) if kind == "command" else said
    if kind == "symbol" or said in KNOWN and (kind == "command" or len(said) > 1):
        return [("symbol", said)]
    if kind == "command" or len(said) > 3 or said.lower() in ENGLISH or not re.search(r"[\\^=0-9]", text):
        raise Unreadable(said)
    return [("name", name) for name in re.findall(r"d?[A-Za-z]$|d[A-Za-z]|[A-Za-z]", said)]


def _repeating(said):
    """0.1\\overline{6} -> 1/6."""
    whole, start, period = re.fullmatch(r"([0-9]*)\.([0-9]*)\\[a-z]+\{([0-9]+)\}", said).groups()
    return Fraction(f"{whole or 0}.{start or 0}") + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(start))


class _Reader:
    """Recursive descent over the tokens of one formula; every method raises Unreadable."""

    def __init__(self, text):
        self.tokens, self.place, self.depth, self.functions, self.bars = _tokens(text), 0, 0, 0, 0

    def next(self, ahead=0):
        at = self.place + ahead
        return self.tokens[at] if at < len(self.tokens) else ("end", "")

    def take(self, *symbols):
        """The next token's text where it is one of these symbols, else None."""
        kind, said = self.next()
        if kind != "symbol" or said not in symbols:
            return None
        self.place += 1
        return said

    def need(self, *symbols):
        if not (said := self.take(*symbols)):
            raise Unreadable(f"{symbols} expected, {self.next()} found")
        return said

    def inside(self, read):
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable("too deep")
        made = read()
        self.depth -= 1
        return made

    def costly(self):
        self.functions += 1
        if self.functions > MOST_FUNCTIONS:
            raise Unreadable("too many functions")

    def items(self):
        """What commas or semicolons part."""
        made = [self.relation()]
        while self.take(",", ";"):
            made.append(self.relation())
        return made

    def relation(self):
        sides, signs = [self.mixed() or self.sum()], []
        while sign := self.take(*RELATIONS):
            signs.append(sign)
            sides.append(self.mixed() or self.sum())
        return ("relation", signs, sides) if signs else sides[0]

    def mixed(self):
        """1 1/4 or 1\\frac{1}{4} where nothing else stands beside it, else None: within a formula it might be a product."""
        start = self.place
        sign = self.take("-")
        values = [self.next(ahead) for ahead in range(8)]
        said = " ".join(text if isinstance(text, str) else "?" for _, text in values)
        found = re.match(r"([0-9]+) (?:([0-9]+) / ([0-9]+)|frac \{ ([0-9]+) \} \{ ([0-9]+) \}|frac ([0-9])([0-9])(?![0-9]))", said)
        if found:
            whole, top, bottom = (int(part) for part in found.groups() if part)
            self.place += len(found[0].split())
            kind, after = self.next()
            if top < bottom and (kind == "end" or kind == "symbol" and after in (",", ";", ")", "]", "}", "end", "rangle", *RELATIONS)):
                value = whole + Fraction(top, bottom)
                return ("number", -value if sign else value)
        self.place = start
        return None

    def sum(self):
        sign = self.take("+", "-")
        made = self.product()
        made = ("*", ("number", Fraction(-1)), made) if sign == "-" else made
        while sign := self.take("+", "-"):
            made = (sign, made, self.product())
        while self.take("cup"):  # of intervals; a number in it is undefined
            made = ("cup", made, self.product())
        return made

    def product(self):
        made, sign = self.power(), "*"
        while True:
            if said := self.take("*", "/"):
                made, sign = (said, made, self.power()), said
            elif self.begins_factor():
                if sign == "/":
                    raise Unreadable("1/2x is a half of x to some and 1/(2x) to others")
                made = ("*", made, self.power())
            else:
                return made

    def begins_factor(self):
        kind, said = self.next()
        if kind == "symbol":
            return said in FUNCTIONS or said in ("(", "[", "{", "frac", "sqrt", "pi") or said == "|" and not self.bars
        return kind == "name"  # a number behind something is refused in the end: 2 3, x2

    def power(self):
        start = self.place
        made = self.atom()
        while self.take("!"):
            made = ("!", made)
        if self.take("^"):
            exponent = self.exponent()
            if exponent[0] != "number":
                self.costly()
            made = ("^", made, exponent)
            if self.next()[1] in ("^", "!"):
                raise Unreadable("a tower of powers")
        if self.next() == ("symbol", "(") and self.tokens[start][0] == "name":
            self.refuse_function(self.tokens[start][1])
        return made

    def refuse_function(self, name):
        """n(n+1) and a(b+c) are products; f(x) and v(t) are a function's value, which is not read."""
        depth, inside = 0, []
        for kind, said in self.tokens[self.place:]:
            depth += (said == "(") - (said == ")")
            if not depth:
                break
            inside.append(said)
        if name not in inside and (name in "fghFGHPE" or not {"+", "-"} & {said for said in inside if isinstance(said, str)}):
            raise Unreadable("a function's value")

    def exponent(self):
        sign = self.take("-", "+")
        if self.next() in (("symbol", "{"), ("symbol", "(")):
            made = self.group()
        else:
            kind, said = self.next()
            if kind not in ("number", "name") and said not in ("pi", "frac", "sqrt"):
                raise Unreadable("exponent")
            made = self.atom()
        return ("number", -made[1]) if sign == "-" and made[0] == "number" else ("*", ("number", Fraction(-1)), made) if sign == "-" else made

    def group(self):
        """One formula in braces or parentheses."""
        opened = self.need("{", "(")
        bars, self.bars = self.bars, 0
        made = self.inside(self.sum)
        self.need(CLOSING[opened][0])
        self.bars = bars
        return made

    def atom(self):
        kind, said = self.next()
        self.place += 1
        if kind == "number":
            return ("number", Fraction(said) if not isinstance(said, str) else Fraction(said.removesuffix(".")))
        if kind == "name":
            return ("name", said)
        if said in ("pi", "infty"):
            return (said,)
        if said in CLOSING:
            return self.brackets(said)
        if said == "|":
            self.bars += 1
            made = ("abs", self.inside(self.sum))
            self.need("|")
            self.bars -= 1
            return made
        if said == "frac":
            return ("/", self.argument(), self.argument())
        if said == "sqrt":
            return self.root()
        if said in FUNCTIONS:
            return self.function(said)
        raise Unreadable(said)

    def brackets(self, opened):
        bars, self.bars = self.bars, 0
        made = self.inside(self.items)
        self.bars = bars
        closed = self.need(*CLOSING[opened])
        if opened == "set":
            return ("set", made)
        if len(made) == 1 and opened + closed in ("()", "[]", "{}"):
            return made[0]
        return ("list", opened + closed, made)

    def argument(self):
        """A group, or one digit or letter as in \\frac12."""
        if self.next() == ("symbol", "{"):
            return self.group()
        kind, said = self.next()
        if kind == "number" and isinstance(said, str) and said.isdigit() and len(said) > 1:
            self.tokens[self.place] = ("number", said[1:])
            return ("number", Fraction(said[0]))
        if kind not in ("number", "name") and said != "pi":
            raise Unreadable("argument")
        return self.atom()

    def root(self):
        self.costly()
        degree = Fraction(2)
        if self.take("["):
            kind, said = self.next()
            if kind != "number" or not str(said).isdigit() or not 2 <= int(said) <= 99:
                raise Unreadable("degree of a root")
            self.place, degree = self.place + 1, Fraction(said)
            self.need("]")
        if self.next() == ("symbol", "("):
            return ("root", degree, self.group())
        if self.next()[0] == "number" and not isinstance(self.next()[1], str):
            raise Unreadable("argument")
        return ("root", degree, self.atom() if self.next()[0] == "number" and self.tokens[self.place - 1][1] == "sqrt" else self.argument())

    def function(self, name):
        """\\sin x, \\sin 2x, \\sin(x+1), \\sin^2 x, \\log_2 8; an unmarked argument that goes on is not read."""
        self.costly()
        base = [self.argument()] if name == "log" and self.take("_") else []
        power = self.exponent() if self.take("^") else None
        if power and not (power[0] == "number" and power[1] > 0):
            raise Unreadable("an inverse or a reciprocal")
        if self.next() in (("symbol", "("), ("symbol", "{")):
            made = (name, self.group(), *base)
        else:
            made = (name, self.plain_argument(), *base)
        return ("^", made, power) if power else made

    def plain_argument(self):
        kind, said = self.next()
        if kind not in ("number", "name") and said not in ("pi", "frac", "sqrt"):
            raise Unreadable("argument")
        made = self.atom()
        if kind == "number" and (self.next()[0] == "name" or self.next()[1] == "pi"):
            made = ("*", made, self.atom())
        if self.begins_factor() or self.next()[1] in ("^", "!"):
            raise Unreadable("an argument without an end")
        return made


@functools.lru_cache(maxsize=4096)
def read(text):
    r"""A formula's structure, for same(), or None where it is not understood to its last character.

    >>> read(r"\frac{1}{2}"), read("the ramp") is None
    (('/', ('number', Fraction(1, 1)), ('number', Fraction(2, 1))), True)
    """
    if len(text) > LONGEST or not text.isprintable():
        return None
    text = text.replace("**", "^").translate(SPELLINGS)
    try:
        if len(signs := re.findall(r"\\[pm][pm](?![A-Za-z])", text)) == 1:
            return ("set", [_read(text.replace(signs[0], sign)) for sign in "+-"])
        return _read(text)
    except Unreadable:
        return None


def _read(text):
    if ARITHMETIC.fullmatch(text) or SEPARATED.fullmatch(text):
        raise Unreadable("a range, a size, a date, a number with separators")
    reader = _Reader(text)
    made = reader.items()
    if reader.place < len(reader.tokens):
        raise Unreadable("a remainder")
    return made[0] if len(made) == 1 else ("list", "", made)


# --- Computing ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _reals():
    import mpmath

    reals = mpmath.mp.clone()
    reals.prec = PRECISION
    return reals


def _held(value):
    """A value that can be trusted: exact, or of a size at which 4,000 bits leave no doubt."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
            raise Unreadable("too large")
        return value
    if not value or _reals().mag(value) < NOISE:
        return Fraction(0)
    if not _reals().isfinite(value) or abs(_reals().mag(value)) > LARGEST:
        raise Unreadable("too large or too small")
    return value


def _real(value):
    """An exact value as a rounded one."""
    if isinstance(value, Fraction):
        return _held(_reals().mpf(value.numerator) / value.denominator) * _reals().one
    return value


def _value(node, point):
    """The value at a point {name: Fraction}: a Fraction where it is known exactly, else a number of 4,000 bits."""
    kind, *parts = node
    if kind == "number":
        return parts[0]
    if kind == "name":
        return point[parts[0]]
    if kind == "pi":
        return +_reals().pi
    if kind == "root":
        return _held(_rooted(parts[0], _value(parts[1], point)))
    if kind not in OPERATIONS:
        raise Unreadable(kind)  # a list or a relation within a formula
    values = [_value(part, point) for part in parts]
    if len(values) == 2 and kind != "^" and isinstance(values[0], Fraction) != isinstance(values[1], Fraction):
        values = [value if value == 0 else _real(value) for value in values]
    return _held(OPERATIONS[kind](*values))


def _divided(a, b):
    if not b:
        raise Undefined("division by 0")
    return a / b


def _rooted(degree, value):
    if value < 0:
        if degree % 2 == 0:
            raise Undefined("an even root of a negative number")
        return -_rooted(degree, -value)
    return _reals().root(_real(value), int(degree)) if value else value


def _raised(base, exponent):
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if not base and exponent <= 0:
            raise Undefined("a power of 0")
        size = max(base.numerator.bit_length(), base.denominator.bit_length()) if isinstance(base, Fraction) else abs(_reals().mag(base)) + 1
        if size * abs(exponent) > (MOST_BITS if isinstance(base, Fraction) else LARGEST + abs(exponent)) or abs(exponent) > MOST_BITS:
            raise Unreadable("too large")
        return base ** int(exponent)
    if base <= 0:
        raise Undefined("a broken power of a number that is not positive")
    return _exponential(_reals().ln(_real(base)) * _real(exponent))


def _exponential(value):
    if abs(value) > LARGEST:
        raise Unreadable("too large")
    return _reals().exp(_real(value))


def _logarithm(value):
    if value <= 0:
        raise Undefined("the logarithm of a number that is not positive")
    return _reals().ln(_real(value))


def _factorial(value):
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 300:
        raise Undefined("factorial")
    return Fraction(math.factorial(int(value)))


def _inverse(name):
    def computed(value):
        if name != "atan" and abs(value) > 1:
            raise Undefined(name)
        return getattr(_reals(), name)(_real(value))
    return computed


def _function(name):
    def computed(value):
        if name in ("sinh", "cosh", "tanh") and abs(value) > LARGEST:
            raise Unreadable("too large")
        return getattr(_reals(), name)(_real(value)) if value else Fraction(int(name.startswith("cos")))
    return computed


BASE = Fraction(1000003, 314161)  # log without a base is one to some base, which fits no number
OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divided, "^": _raised, "!": _factorial, "abs": abs,
    "exp": _exponential, "ln": _logarithm, "log": lambda value, base=BASE: _divided(_logarithm(value), _held(_logarithm(base))),
    **{name: _function(name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "arcsin": _inverse("asin"), "arccos": _inverse("acos"), "arctan": _inverse("atan"),
    "cot": lambda value: _divided(_function("cos")(value), _held(_function("sin")(value))),
    "sec": lambda value: _divided(_reals().one, _held(_function("cos")(value))),
    "csc": lambda value: _divided(_reals().one, _held(_function("sin")(value)))}

# --- Comparing ----------------------------------------------------------------------------------------------------


def same(a, b):
    """Do two formulas that read() understood say the same? False also where they are too large to be computed.

    Lists agree item by item and in their brackets, sets in any order, relations side by side, mirrored, or (equations)
    with one a multiple of the other.
    """
    try:
        return _same(a, b)
    except Unreadable:
        return False


def _same(a, b):
    if a == b:
        return True
    kinds = a[0], b[0]
    if kinds == ("list", "list"):
        equations = not a[1] and all(item[0] == "relation" for item in a[2] + b[2])
        return a[1] == b[1] and (_same_set(a[2], b[2]) if equations else _same_items(a[2], b[2]))
    if kinds == ("set", "set"):
        return _same_set(a[1], b[1])
    if kinds == ("cup", "cup"):
        return _same_set(_joined(a), _joined(b))
    if kinds == ("relation", "relation"):
        return _same_relation(_ascending(a), _ascending(b))
    if {"list", "set", "cup", "relation"} & set(kinds) or "infty" in str((a, b)):
        return _endless(a) is not None and _endless(a) == _endless(b)
    return _same_number(a, b)


def _endless(node):
    """1 for infinity, -1 for minus infinity, else None."""
    return 1 if node == ("infty",) else -1 if node == ("*", ("number", Fraction(-1)), ("infty",)) else None


def _joined(node):
    return _joined(node[1]) + [node[2]] if node[0] == "cup" else [node]


def _same_items(a, b):
    return len(a) == len(b) and all(map(_same, a, b))


def _same_set(a, b):
    return len(a) <= 12 >= len(b) and all(any(_same(x, y) for y in b) for x in a) and all(any(_same(x, y) for x in a) for y in b)


def _ascending(relation):
    _, signs, sides = relation
    if all(sign in (">", ">=") for sign in signs):
        return [sign.replace(">", "<") for sign in reversed(signs)], sides[::-1]
    return signs, sides


def _same_relation(a, b):
    (signs, sides), (other_signs, others) = a, b
    if signs != other_signs:
        return False
    if _same_items(sides, others) or signs in (["="], ["!="]) and _same_items(sides, others[::-1]):
        return True
    return signs == ["="] and _same_number(("-", *sides), ("-", *others), multiple=True)


def _names(node):
    if node[0] == "name":
        return {node[1]}
    return set().union(*(_names(part) for part in node[1:] if isinstance(part, tuple)))


def _points(names):
    """Where formulas are compared: points all positive, less than 1, more than 2, with one name negative, all negative."""
    negative = [set()] * 4 + [{name} for name in names] + [set(names)] * (len(names) > 1)
    for number, minus in enumerate(negative):
        point = {}
        for name in names:
            draw = random.Random(f"{name} {number}")
            low, high = sorted(draw.sample(range(10**5, 10**6), 2))
            value = Fraction(high, low) + 2 if number == 0 else Fraction(low, high) if number == 1 else Fraction(draw.choice([high, low]), 10**6 - low)
            point[name] = -value if name in minus else value
        yield point


def _same_number(a, b, multiple=False):
    """Equal at every point where both are real, and there are such; `multiple`: up to one factor, which is not 0."""
    names, factors = sorted(_names(a) | _names(b)), []
    if len(names) > 8:
        raise Unreadable("too many names")
    for point in _points(names) if names else [{}]:
        try:
            x, y = _value(a, point), _value(b, point)
        except Undefined:
            continue
        if multiple and (not x or not y):
            return False
        factors.append((x, y))
        if not multiple and not _close(x, y):
            return False
    if multiple:
        return len(factors) > 1 and not all(_close(factors[0][0], x) for x, _ in factors) and all(
            _close(_product(factors[0][0], y), _product(factors[0][1], x)) for x, y in factors)
    return len(factors) >= min(2, 1 + len(names))


def _product(a, b):
    return a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else _real(a) * _real(b)


def _close(x, y):
    """Equal; where one is rounded, up to 2^-2500 of its size."""
    if isinstance(x, Fraction) and isinstance(y, Fraction) or not x or not y:
        return x == y
    difference = _real(x) - _real(y)
    return not difference or _reals().mag(difference) < TOLERANCE + _reals().mag(_real(x))
