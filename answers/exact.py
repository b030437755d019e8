r"""Are two formulas the same? Exactly, by our own arithmetic: no sympy, no time limit, no tolerance that shows.

Two formulas that formulas.py reads are the same where they agree at every point of a fixed sample at which both are real
numbers. Letters stand for real numbers of either sign: \sqrt{1/n} is \frac{1}{\sqrt{n}}, and \sqrt{x^2} is not x. Rational
values are compared exactly; a root, a sine or pi is computed to 8,000 bits, of numbers that have at most 1,200 and lie
within 2^-600 and 2^600; past that nothing is said to be the same. So no difference of two short formulas is lost.

>>> from answers.formulas import read
>>> same(read(r"\sqrt{1/n}"), read(r"\frac{1}{\sqrt{n}}")), same(read(r"4\sqrt(2)"), read("4"))
(True, False)
"""
import functools
import math
import random
from fractions import Fraction

from answers.formulas import MINUS_ONE, Unreadable

MOST_BITS = 20_000  # of a numerator or denominator
MOST_BITS_ROUNDED = 1200  # of one that is rounded: a root of it and a rational number differ by 2^-3600 or not at all
PRECISION = 8000  # bits of a rounded number
LARGEST, NOISE, TOLERANCE = 600, -5000, -6000  # bits: of its size, of what counts as 0, of what counts as equal


class Undefined(ArithmeticError):
    """No real number at this point."""


# --- Computing ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _reals():
    import mpmath

    reals = mpmath.mp.clone()
    reals.prec = PRECISION
    return reals


def _held(value):
    """A value that can be trusted: exact, or of a size at which 8,000 bits leave no doubt."""
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
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS_ROUNDED:
            raise Unreadable("too long to be rounded")
        return _held(_reals().mpf(value.numerator) / value.denominator) * _reals().one
    return value


def _value(node, point):
    """The value at a point {name: Fraction}: a Fraction where it is known exactly, else a number of 8,000 bits."""
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
        return _whole_power(base, int(exponent))
    if base <= 0:
        raise Undefined("a broken power of a number that is not positive")
    return _exponential(_reals().ln(_real(base)) * _real(exponent))


def _whole_power(base, exponent):
    if not base and exponent <= 0:
        raise Undefined("a power of 0")
    if isinstance(base, Fraction):
        bits, most = max(base.numerator.bit_length(), base.denominator.bit_length()), MOST_BITS
    else:
        bits, most = abs(_reals().mag(base)), LARGEST
    if bits * abs(exponent) > most or abs(exponent) > MOST_BITS:
        raise Unreadable("too large")
    return base**exponent


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


def _periodic(name):
    def computed(value):
        return getattr(_reals(), name)(_real(value)) if value else Fraction(int(name == "cos"))
    return computed


BASE = Fraction(1000003, 314161)  # log without a base is one to some base, which fits no number
OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divided, "^": _raised, "!": _factorial,
    "abs": abs, "sin": _periodic("sin"), "cos": _periodic("cos"), "tan": _periodic("tan"), "exp": _exponential, "ln": _logarithm,
    "log": lambda value, base=BASE: _divided(_logarithm(value), _held(_logarithm(base)))}

# --- Comparing ----------------------------------------------------------------------------------------------------


def same(a, b):
    """Do two formulas that read() understood say the same? False also where they are too large to be computed.

    Lists agree item by item and in their brackets, sets in any order, relations side by side or mirrored.
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
    return 1 if node == ("infty",) else -1 if node == ("*", MINUS_ONE, ("infty",)) else None


def _joined(node):
    return _joined(node[1]) + [node[2]] if node[0] == "cup" else [node]


def _same_items(a, b):
    return len(a) == len(b) and all(map(_same, a, b))


def _same_set(a, b):
    return len(a) <= 12 >= len(b) and all(any(_same(x, y) for y in ys) for xs, ys in ((a, b), (b, a)) for x in xs)


def _ascending(relation):
    _, signs, sides = relation
    if all(sign in (">", ">=") for sign in signs):
        return [sign.replace(">", "<") for sign in reversed(signs)], sides[::-1]
    return signs, sides


def _same_relation(a, b):
    (signs, sides), (other_signs, others) = a, b
    mirrored = signs in (["="], ["!="]) and _same_items(sides, others[::-1])
    return signs == other_signs and (mirrored or _same_items(sides, others))


def _names(node):
    if node[0] == "name":
        return {node[1]}
    return set().union(*(_names(part) for part in node[1:] if isinstance(part, tuple)))


def _points(names):
    """Where formulas are compared: all names above 2, all below 1, two more, one of them negative, all of them negative."""
    for number, negative in enumerate([set()] * 4 + [{name} for name in names] + [set(names)] * (len(names) > 1)):
        yield {name: _coordinate(name, number) * (-1 if name in negative else 1) for name in names}


def _coordinate(name, number):
    draw = random.Random(f"{name} {number}")
    low, high = sorted(draw.sample(range(10**5, 10**6), 2))
    if number == 0:
        return Fraction(high, low) + 2
    return Fraction(low, high) if number == 1 else Fraction(draw.choice([high, low]), 10**6 - low)


def _same_number(a, b):
    """Equal at every point where both are real, and there are such."""
    names, met = sorted(_names(a) | _names(b)), 0
    if len(names) > 6:
        raise Unreadable("too many names")
    for point in _points(names) if names else [{}]:
        try:
            equal = _close(_value(a, point), _value(b, point))
        except Undefined:
            continue
        if not equal:
            return False
        met += 1
    return met >= (2 if names else 1)


def _close(x, y):
    """Equal; where one is rounded, up to 2^-6000 of its size."""
    if isinstance(x, Fraction) and isinstance(y, Fraction) or not x or not y:
        return x == y
    difference = _real(x) - _real(y)
    return not difference or _reals().mag(difference) < TOLERANCE + _reals().mag(_real(x))
