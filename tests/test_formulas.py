r"""An oracle for answers_match on formulas: pairs that are equal, or different, by construction, and checked by sympy.

sympy makes the expressions and proves each pair; the spelling is ours, and answers_match reads it with neither. What is
called equal here is what its documentation calls so: letters are real numbers, brackets and names count.

    python -m tests.test_formulas 20000 [summary.json]      # a larger run: counts by kind, every false match in full
"""
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import sympy as sp

from rewards import answers_match

X, Y, Z, N = sp.symbols("x y z n", real=True)
LETTERS = (X, Y, Z, N)
SEED, PAIRS = 15, 2400
MOST_MISSED = 0.02  # of the equal pairs; measured: 33 of 10,041 in the run of 20,000

# --- Spelling -----------------------------------------------------------------------------------------------------


def fraction(top, bottom, rng):
    return rng.choice([rf"\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{top}}}{{{bottom}}}", f"({top})/({bottom})"])


def decimal(value):
    """The finite decimal of a rational number, or None."""
    rest = value.q
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1 or value.q > 10**6:
        return None
    digits = 0
    while (value * 10**digits).q != 1:
        digits += 1
    whole = str(abs(value * 10**digits)).rjust(digits + 1, "0")
    return ("-" if value < 0 else "") + (whole[:-digits] + "." + whole[-digits:] if digits else whole)


def rational(value, rng, alone=False):
    """A rational number: alone also as a mixed number, with a separator, in scientific notation."""
    sign, size = "-" if value < 0 else "", abs(value)
    ways = [f"{sign}{size.p}"]
    if size.q > 1:
        ways = [sign + rf"\frac{{{size.p}}}{{{size.q}}}", sign + rf"\tfrac{{{size.p}}}{{{size.q}}}"]
    if size.q > 1 and size.p < 10 and size.q < 10:
        ways.append(sign + rf"\frac{size.p}{size.q}")
    if decimal(value):
        ways += [decimal(value)] + [decimal(value) + ("0" if "." in decimal(value) else ".0")]
    if alone and size.q > 1:
        ways.append(f"{sign}{size.p}/{size.q}")
        if size > 1:
            whole, rest = divmod(size.p, size.q)
            ways += [f"{sign}{whole} {rest}/{size.q}", rf"{sign}{whole}\frac{{{rest}}}{{{size.q}}}",
                     rf"{sign}{whole}\,\tfrac{{{rest}}}{{{size.q}}}"]
    return rng.choice(ways)


FUNCTIONS = {sp.sin: "sin", sp.cos: "cos", sp.tan: "tan", sp.exp: "exp", sp.log: "ln"}


def spell(made, rng, alone=True):
    """An expression as text; products and quotients are written so that they can be read in one way only."""
    if made.is_Rational:
        return rational(made, rng, alone)
    if made.is_Symbol:
        return made.name
    if made == sp.pi:
        return rng.choice([r"\pi", r"\pi ", "π"])
    if made == sp.E:
        return r"\exp(1)"
    if isinstance(made, sp.Abs):
        return f"|{spell(made.args[0], rng, False)}|"
    if made.is_Add:
        terms = list(made.args)
        rng.shuffle(terms)
        said = [spell(term, rng, False) for term in terms]
        space = rng.choice(["", " "])
        signed = [f"{space}-{space}{term[1:]}" if term.startswith("-") else f"{space}+{space}{term}" for term in said[1:]]
        return said[0] + "".join(signed)
    if made.is_Mul:
        return product(made, rng)
    if made.is_Pow:
        return power(made, rng)
    if made.func not in FUNCTIONS:
        raise NotImplementedError(f"no spelling for {made}")
    return rf"\{FUNCTIONS[made.func]}({spell(made.args[0], rng, False)})"


def grouped(made, rng):
    """A factor, in brackets where it is a sum, a product or a signed number."""
    said = spell(made, rng, False)
    plain = (made.is_Symbol or made == sp.pi or made.is_Integer and made >= 0 or made.is_Pow and made.exp.is_positive
             or made.is_Function)
    return said if plain and "/" not in said else rng.choice([f"({said})", rf"\left({said}\right)"])


def product(made, rng):
    top, bottom = made.as_numer_denom()
    if bottom != 1:
        sign = "-" if top.could_extract_minus_sign() else ""
        return sign + fraction(spell(-top if sign else top, rng, False), spell(bottom, rng, False), rng)
    number, factors = made.as_coeff_mul()
    factors = list(factors)
    rng.shuffle(factors)
    sign, number = ("-", -number) if number < 0 else ("", number)
    said = [grouped(factor, rng) for factor in factors]
    mark = rng.choice([" ", r" \cdot ", r" \times ", "*"])
    if any(text[:1].isdigit() for text in said):
        mark = r" \cdot "
    return sign + mark.join(([grouped(number, rng)] if number != 1 else []) + said)


def power(made, rng):
    base, exponent = made.args
    if exponent == sp.Rational(1, 2):
        said = spell(base, rng, False)
        powers = [rf"{grouped(base, rng)}^{{1/2}}", rf"{grouped(base, rng)}^{{0.5}}"]
        return rng.choice([rf"\sqrt{{{said}}}", rf"\sqrt{{{said}}}", f"sqrt({said})", *powers])
    if exponent.could_extract_minus_sign():
        ways = [fraction("1", spell(base**-exponent, rng, False), rng),
                rf"{grouped(base, rng)}^{{{spell(exponent, rng, False)}}}"]
        return rng.choice(ways)
    inside = spell(exponent, rng, False)
    ways = [f"{{{inside}}}"] + ([inside] if exponent.is_Integer else []) + ([f"({inside})"] if "frac" not in inside else [])
    return f"{grouped(base, rng)}^{rng.choice(ways)}"


# --- Expressions, and what is not the same ------------------------------------------------------------------------


def number(rng, most=12):
    return sp.Rational(rng.randint(1, most) * rng.choice([1, 1, 1, -1]), rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 20]))


def other_number(value, rng):
    """Near it: the last digit, the sign, the reciprocal, a power of ten, one in a million."""
    near = [value + 1, -value, value + sp.Rational(1, 10**6), value * 10, value / 10, value + sp.Rational(1, 3), 1 / (value or 3)]
    return rng.choice([new for new in near if new != value])


def polynomial(rng):
    letters = rng.sample(LETTERS, rng.choice([1, 2]))
    terms = (number(rng) * sp.Mul(*(letter ** rng.randint(0, 3) for letter in letters)) for _ in range(rng.randint(2, 3)))
    return sum(terms, sp.Integer(0))


def surd(rng):
    terms = (number(rng) * sp.sqrt(rng.randint(2, 60)) ** rng.choice([1, 1, -1]) for _ in range(rng.choice([1, 1, 2])))
    return sum(terms, number(rng) * rng.choice([0, 1]))


def factored(rng):
    letters = rng.sample(LETTERS, 2)
    factors = ((letters[0] + number(rng) * letters[1] ** rng.randint(0, 1)) ** rng.choice([1, 2, -1]) for _ in range(2))
    return sp.Mul(*factors) * number(rng)


def root_of_letters(rng):
    """Roots that hold for the letters' own sign only where they are real: \\sqrt{1/n}, \\sqrt{x}/\\sqrt{y}."""
    a, b = rng.sample(LETTERS, 2)
    return number(rng) * rng.choice([sp.sqrt(1 / a), sp.sqrt(a) * b, sp.sqrt(a + b) / b, sp.sqrt(a) / (a + 1),
                                     (a + 2) ** sp.Rational(3, 2)])


def elementary(rng):
    a, b = rng.sample(LETTERS, 2)
    return number(rng) * rng.choice([sp.sin(a) + sp.cos(b), sp.exp(a) * b, sp.log(a) + b, sp.sin(a + b), sp.tan(a) * sp.pi,
                                     sp.pi * a**2, sp.cos(sp.pi * a)])


def huge(rng):
    base = rng.choice([2, 3, 7, 10, X, N])
    return number(rng) * sp.sympify(base) ** (rng.choice([1, -1]) * rng.randint(15, 120)) + rng.choice([0, 0, number(rng)])


def other(made, rng):
    """An expression that is another one: a number, a letter, a power, a sign changed, a term more."""
    atoms = sorted(made.atoms(sp.Rational, sp.Symbol), key=str)
    for _ in range(20):
        atom = rng.choice(atoms)
        if atom.is_Symbol:
            new = rng.choice([letter for letter in LETTERS if letter != atom])
        else:
            new = atom + rng.choice([1, -1, 2, sp.Rational(1, 1000)])
        changed = rng.choice([made.xreplace({atom: new}), made + sp.Rational(1, 10**9), made * 2, -made,
                              made * rng.choice(LETTERS), 1 / made])
        if not changed.has(sp.zoo, sp.nan, sp.oo, sp.I) and proven(made, changed, False):
            return changed
    return made + 1


def forms(made, rng):
    """The same expression in another form, by sympy."""
    small = all(part.exp.is_Rational and abs(part.exp) < 9 and part.exp.q < 3 for part in made.atoms(sp.Pow))
    surds = not made.free_symbols and small  # and factoring x^120 - 1 takes minutes
    change = [sp.expand, sp.factor if small else sp.expand, sp.together, lambda same: same, sp.radsimp if surds else sp.expand]
    return rng.choice(change)(made)


TINY = sp.Rational(1, 10)
POINTS = [{letter: sp.Rational(p, 7) for letter, p in zip(LETTERS, sevenths)}
          for sevenths in ((9, 16, 25, 11), (3, 5, 2, 6), (40, 31, 23, 19))]


def proven(a, b, equal):
    """Are they what they were made to be? Equal ones are sympy's own forms of one expression: their difference expands to 0,
    or is rational and 0 at every point, or vanishes there to 300 digits. Different ones have an exact difference that is
    not 0 at some point: a rational one, or one whose first digits sympy guarantees."""
    difference = a - b
    if equal and sp.expand(difference) == 0:
        return True
    values = [difference.subs(point) for point in POINTS]
    values = [value for value in values if value.is_Rational or value.evalf(15, maxn=2000).is_Float]
    if equal:
        zeros = [value == 0 if value.is_Rational else abs(value.evalf(320, maxn=2000)) < TINY ** 300 for value in values]
        return bool(zeros) and all(zeros)
    return any(value != 0 if value.is_Rational else abs(value.evalf(15, maxn=2000)) > TINY ** 200 for value in values)


# --- Pairs --------------------------------------------------------------------------------------------------------
# A kind makes (text, text) of an equal or a different pair, or None where sympy does not prove it.

EXPRESSIONS = {"roots": surd, "polynomials": polynomial, "quotients": factored, "roots of letters": root_of_letters,
               "functions": elementary, "huge and small powers": huge}


def expressions(make):
    def pair(rng, equal):
        made = make(rng)
        a, b = (forms(made, rng), forms(made, rng)) if equal else (forms(made, rng), forms(other(made, rng), rng))
        return (spell(a, rng), spell(b, rng)) if proven(a, b, equal) else None
    return pair


def numbers(rng, equal):
    value = sp.Rational(rng.randint(1, 400), rng.choice([1, 2, 3, 4, 8, 10, 25])) * rng.choice([1, -1])
    return rational(value, rng, True), rational(value if equal else other_number(value, rng), rng, True)


def scientific(rng, equal):
    digits, exponent = sp.Rational(rng.randint(11, 99), 10), rng.choice([-12, -6, -3, 2, 3, 5, 9, 23, 60, -60])
    different = [(digits + sp.Rational(1, 10), exponent), (digits, exponent + 1), (digits, -exponent), (-digits, exponent)]
    other_digits, other_exponent = (digits, exponent) if equal else rng.choice(different)
    said = []
    for d, e in ((digits, exponent), (other_digits, other_exponent)):
        d, e = rng.choice([(d, e), (d * 10, e - 1), (d / 10, e + 1)])
        said.append(decimal(d) + rng.choice([rf" \times 10^{{{e}}}", rf"\cdot 10^{{{e}}}", f"e{e}", f" x 10^{e}", f"×10^({e})"]))
    return tuple(said)


def item(rng):
    return number(rng) if rng.random() < 0.6 else rng.choice([surd, polynomial])(rng)


def listed(items, brackets, rng):
    return brackets[0] + rng.choice([",", ", ", r",\,"]).join(spell(made, rng) for made in items) + brackets[1]


def tuples(rng, equal):
    items = [item(rng) for _ in range(rng.choice([2, 2, 3]))]
    changed, brackets = list(items), ("(", ")")
    if not equal:
        way = rng.randrange(4)
        place = rng.randrange(len(items))
        if way == 0:
            changed[place] = other(items[place], rng)
        elif way == 1:
            changed = changed[1:] + changed[:1]
        elif way == 2:
            changed.append(number(rng))
        else:
            brackets = rng.choice([(r"\{", r"\}"), ("[", "]"), ("", ""), (r"\langle ", r"\rangle")])
        if way == 1 and all(proven(a, b, True) for a, b in zip(items, changed)):
            return None
    opened = rng.choice([("(", ")"), (r"\left(", r"\right)")])
    return listed(items, opened, rng), listed(changed, opened if brackets == ("(", ")") else brackets, rng)


def intervals(rng, equal):
    low = number(rng)
    ends = [low, low + abs(number(rng))]
    brackets = (rng.choice("(["), rng.choice(")]"))
    if equal:
        return listed(ends, brackets, rng), listed(ends, brackets, rng)
    if rng.random() < 0.5:
        others = [(a, b) for a in "([" for b in ")]" if (a, b) != brackets]
        return listed(ends, brackets, rng), listed(ends, rng.choice(others), rng)
    return listed(ends, brackets, rng), listed([ends[0], other_number(ends[1], rng)], brackets, rng)


def sets(rng, equal):
    items = list(dict.fromkeys(item(rng) for _ in range(3)))
    changed = rng.sample(items, len(items))
    if not equal:
        new = sum((abs(made) for made in items if made.is_number), sp.Integer(50))
        changed = changed[1:] if rng.random() < 0.5 else changed[1:] + [new]
    return listed(items, (r"\{", r"\}"), rng), listed(changed, (r"\{", r"\}"), rng)


def equations(rng, equal):
    name, right = rng.choice(["y", "w", "v_0", r"\theta", "F"]), rng.choice([number, surd, factored])(rng)
    other_name, other_side = name, right
    if not equal:
        if rng.random() < 0.5:
            other_name = rng.choice([new for new in ("y", "w", "v_0", "v_1", r"\theta", r"\phi", "f") if new != name])
        else:
            other_side = other(right, rng)
    a, b = f"{name} = {spell(right, rng)}", f"{other_name}={spell(forms(other_side, rng), rng)}"
    if rng.random() < 0.3:
        left, right_side = b.split("=")
        b = f"{right_side} = {left}"
    return a, b


KINDS = {"numbers": numbers, "scientific notation": scientific, **{kind: expressions(make) for kind, make in EXPRESSIONS.items()},
         "tuples": tuples, "intervals": intervals, "sets": sets, "equations": equations}


def pairs(count, seed=SEED):
    """(kind, equal, text, text), each drawn from (seed, its number); one that sympy does not prove is drawn again."""
    for index in range(count):
        rng = random.Random(f"{seed} {index}")
        kind, equal = list(KINDS)[index % len(KINDS)], rng.random() < 0.5
        while not (pair := KINDS[kind](rng, equal)):
            pass
        yield kind, equal, *pair


def judged(count, seed=SEED):
    """{"false": [...], "missed": [...], "pairs": {kind: n}, "equal": {kind: n}}: what answers_match gets wrong."""
    found = {"false": [], "missed": [], "pairs": Counter(), "equal": Counter()}
    for kind, equal, a, b in pairs(count, seed):
        found["pairs"][kind] += 1
        found["equal"][kind] += equal
        if equal and not answers_match(a, b):
            found["missed"].append((kind, a, b))
        elif not equal and (answers_match(a, b) or answers_match(b, a)):
            found["false"].append((kind, a, b))
    return found


# --- Tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return judged(PAIRS)


def test_nothing_that_differs_matches(found):
    assert not found["false"]
    assert sum(found["pairs"].values()) == PAIRS >= 2000
    assert all(found["pairs"][kind] - found["equal"][kind] >= 50 for kind in KINDS)


def test_few_equal_pairs_are_missed(found):
    assert len(found["missed"]) <= MOST_MISSED * sum(found["equal"].values()), found["missed"][:20]
    assert all(found["equal"][kind] >= 50 for kind in KINDS)


def test_the_oracle_can_fail():
    """A reader that takes all for equal, or none, is found out."""
    drawn = list(pairs(120))
    assert {equal for _, equal, _, _ in drawn} == {True, False}
    assert all(a.strip() for _, _, *said in drawn for a in said)
    assert sum(equal and a != b for _, equal, a, b in drawn) > 30


def main(count, out=None):
    began = time.process_time()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    found = judged(count)
    missed = Counter(kind for kind, *_ in found["missed"])
    summary = {
        "command": " ".join(["python -m tests.test_formulas", *sys.argv[1:]]),
        "commit": commit,
        "seed": SEED, "pairs": count, "equal": sum(found["equal"].values()), "different": count - sum(found["equal"].values()),
        "false_matches": len(found["false"]), "missed": len(found["missed"]),
        "by_kind": {kind: {"pairs": found["pairs"][kind], "equal": found["equal"][kind], "missed": missed[kind],
                           "missed_share": round(missed[kind] / max(found["equal"][kind], 1), 4)} for kind in KINDS},
        "sympy": sp.__version__, "cpu_seconds": round(time.process_time() - began, 1),
        "false": found["false"][:50], "missed_examples": found["missed"][:20]}
    print(json.dumps(summary, indent=1, ensure_ascii=False))
    if out:
        Path(out).write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
