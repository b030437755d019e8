r"""Read a formula, short LaTeX or plain text, to its last character or not at all; exact.py computes and compares them.

A formula becomes nested tuples: ("number", value), ("name", text), ("+", a, b), ("list", "()", items), ("set", items),
("relation", signs, sides). What can be read in two ways is not read: 1/2x, 3-5 (a range), f(2x), a word among letters.

>>> read(r"\frac{1}{2}"), read(r"4\sqrt(2)")[0], read("4 or 5"), read("f(2x)")
(('/', ('number', Fraction(1, 1)), ('number', Fraction(2, 1))), '*', None, None)
"""
import functools
import re
from fractions import Fraction

LONGEST = 400  # characters of a formula
DEEPEST = 20  # brackets in one another
MOST_FUNCTIONS = 6  # of roots, logarithms, sines and powers that are no plain number: milliseconds each and point


class Unreadable(ValueError):
    """Not a formula that is understood to its last character, or too large to be computed exactly."""


# --- Tokens -------------------------------------------------------------------------------------------------------

GREEK = ("alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega"
         "|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega")
TOKEN = re.compile(rf"""\s*(?:
    (?P<repeating> [0-9]*\.[0-9]*\\(?:overline|bar)\{{[0-9]+\}})      # 0.1\overline{{6}}
  | (?P<number> (?!0[0-9])[0-9]+(?:\.[0-9]*)? | \.[0-9]+)             # 4.5; 000 is half of a number with a separator
  | (?P<name> (?:d\ ?|\\[Dd]elta(?![A-Za-z])\ ?)?                     # dx and \Delta x are one symbol, not a product
      (?:[A-Za-z](?![A-Za-z])|\\(?:{GREEK})(?![A-Za-z])|[α-ωΑ-Ω])
      (?:_(?:[A-Za-z0-9]|\{{[A-Za-z0-9 ,]{{1,20}}\}}))?)
  | \\(?P<command> [A-Za-z]+|[{{}}|])
  | (?P<word> [A-Za-z]+)
  | (?P<symbol> <=|>=|!=|[-+*/^_!=<>(),;|{{}}\[\]]))""", re.VERBOSE)
SPELLINGS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "≤": "<=", "≥": ">=", "≠": "!=", "π": r"\pi ",
                           "∞": r"\infty ", "√": r"\sqrt ", "∪": r"\cup ", "±": r"\pm ", "∓": r"\mp "})
COMMANDS = {"le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=",
            "lt": "<", "gt": ">", "div": "/", "{": "set", "}": "end", "lbrace": "set", "rbrace": "end", "dfrac": "frac",
            "tfrac": "frac", "cfrac": "frac", "|": "|", "lvert": "|", "rvert": "|", "vert": "|"}
FUNCTIONS = {"sin", "cos", "tan", "ln", "log", "exp"}
KNOWN = FUNCTIONS | {"frac", "sqrt", "pi", "infty", "cup", "langle", "rangle"} | set(COMMANDS.values())
ENGLISH = set("am an and any are as at be but by cat cup did do far few for get go got had has hit if in is it its let low me my "
              "new no nor not now of off on one or out per ran red run saw set so the to too top two up "
              "us was we yes you".split())


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


# --- Grammar ------------------------------------------------------------------------------------------------------

CLOSING = {"(": ")]", "[": "])", "set": ["end"], "{": "}", "langle": ["rangle"]}
RELATIONS = {"=", "!=", "<", "<=", ">", ">="}
ARITHMETIC = re.compile(r"[-+]?[0-9 .]+(?:[-+*]|/[0-9 .]+[-+*/])[-+*/0-9 .]*")  # 3-5 may be a range, 2*3 a size, 1/2/3 a date
SEPARATED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
MIXED = re.compile(r"""                                   # 1 1/4 where nothing else stands beside it: within a formula it
    (?:(?<=[,;(\[{=<>])|^) \s*(-?)\s* ([0-9]{1,60})         # might be a product
    (?: \s+([0-9]{1,60})\s*/\s*([0-9]{1,60})
      | \s*\\[dt]?frac\s*(?:\{([0-9]{1,60})\}\s*\{([0-9]{1,60})\}|([0-9])\s*([0-9])) )
    \s*(?=$|[,;)\]}=<>\\])""", re.VERBOSE)
MINUS_ONE = ("number", Fraction(-1))


def _sum_of_mixed(found):
    sign, *parts = filter(None, found.groups()) if found[1] else ("", *filter(None, found.groups()))
    whole, top, bottom = parts
    if int(top) >= int(bottom):
        raise Unreadable("neither a mixed number nor a clear product")
    return f"{sign}({whole}+{top}/{bottom})"


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
        sides, signs = [self.sum()], []
        while sign := self.take(*RELATIONS):
            signs.append(sign)
            sides.append(self.sum())
        return ("relation", signs, sides) if signs else sides[0]

    def sum(self):
        sign = self.take("+", "-")
        made = self.product()
        made = ("*", MINUS_ONE, made) if sign == "-" else made
        while sign := self.take("+", "-", "cup"):  # a union of intervals: of numbers it is none, and has no value
            made = (sign, made, self.product())
        return made

    def product(self):
        made = last = self.power()
        sign = "*"
        while True:
            if said := self.take("*", "/"):
                sign, last = said, self.power()
                made = (said, made, last)
            elif self.begins_factor():
                mixed = last[0] == "number" and self.next()[1] == "frac"
                last = self.power()
                if sign == "/":
                    raise Unreadable("1/2x is a half of x to some and 1/(2x) to others")
                if mixed and last[0] == "/" and last[1][0] == last[2][0] == "number":
                    raise Unreadable("3\\frac{1}{2} is a mixed number to some and a product to others")
                made = ("*", made, last)
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
        for _, said in self.tokens[self.place:]:
            depth += (said == "(") - (said == ")")
            inside.append(str(said))
            if not depth:
                break
        if name not in inside and (name in "fghFGHPE" or not {"+", "-"} & set(inside)):
            raise Unreadable("a function's value")

    def exponent(self):
        sign = self.take("-", "+")
        kind, said = self.next()
        if said in ("{", "("):
            made = self.group()
        elif kind in ("number", "name") or said in ("pi", "frac", "sqrt"):
            made = self.atom()
        else:
            raise Unreadable("exponent")
        if sign == "-":
            return ("number", -made[1]) if made[0] == "number" else ("*", MINUS_ONE, made)
        return made

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
            return ("number", Fraction(said.removesuffix(".") if isinstance(said, str) else said))
        if kind == "name":
            return ("name", said)
        if said in ("pi", "infty"):
            return (said,)
        if said in CLOSING:
            return self.brackets(said)
        if said == "|":
            return self.absolute()
        if said == "frac":
            return ("/", self.argument(), self.argument())
        if said == "sqrt":
            return self.root()
        if said in FUNCTIONS:
            return self.function(said)
        raise Unreadable(said)

    def absolute(self):
        if self.next()[1] == "|":
            raise Unreadable("a norm")
        self.bars += 1
        made = ("abs", self.inside(self.sum))
        self.need("|")
        self.bars -= 1
        return made

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
        """\\sqrt{x}, \\sqrt[3]{x}, \\sqrt2, sqrt(x), √12."""
        self.costly()
        degree = "2"
        if self.take("["):
            degree, self.place = self.next()[1], self.place + 1
            if not re.fullmatch("[2-9]|[1-9][0-9]", str(degree)):
                raise Unreadable("degree of a root")
            self.need("]")
        kind, said = self.next()
        inside = self.group() if said == "(" else self.atom() if kind == "number" and degree == "2" else self.argument()
        return ("root", Fraction(degree), inside)

    def function(self, name):
        """\\sin x, \\sin(x+1), \\sin^2 x, \\log_2 8; \\sin^{-1} may be the inverse or the reciprocal."""
        self.costly()
        base = [self.argument()] if name == "log" and self.take("_") else []
        power = self.exponent() if self.take("^") else None
        if power and not (power[0] == "number" and power[1] > 0):
            raise Unreadable("an inverse or a reciprocal")
        made = (name, self.group() if self.next()[1] in ("(", "{") else self.plain_argument(), *base)
        return ("^", made, power) if power else made

    def plain_argument(self):
        """\\sin x or \\sin 2x; an unmarked argument that goes on is not read."""
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
    r"""A formula's structure, or None where it is not understood to its last character; \pm gives the set of both.

    >>> read("x"), read("(1,4]")[:2], read(r"\pm 2")[0], read("x^{2")
    (('name', 'x'), ('list', '(]'), 'set', None)
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
    reader = _Reader(MIXED.sub(_sum_of_mixed, text))
    made = reader.items()
    if reader.place < len(reader.tokens):
        raise Unreadable("a remainder")
    return made[0] if len(made) == 1 else ("list", "", made)
