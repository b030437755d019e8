r"""Read an answer and compare it: the final answer of a completion, the option it means, whether it says the truth.

Pure functions of strings. No text of any content or length raises or takes more than linear time.

>>> extract_answer(r"I say \boxed{B}, no wait, \boxed{C}"), answers_match("C, not A", "C", {"A": "left", "C": "right"})
('C', True)
"""
import functools
import json
import re

from answers.polarity import BECAUSE, CONDITION, POLARITY, hedged, opinions, polarity
from answers.values import BOX, boxes, completion_text, key, plain, same_value, tagged, unlatex

LONGEST_TAIL = 4000  # characters at the end of a completion in which an unboxed answer is sought

# --- Which option is meant ----------------------------------------------------------------------------------------

NOT_CJK = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # a letter may follow Chinese without a space
AUXILIARY = re.compile(r"""
    \b(is|are|was|were|do|does|did|can|could|would|will|should|must|may|might|has|have)(\ \w+ly)?\ not\b""", re.I | re.VERBOSE)
NEGATION = re.compile(r"""
    \bnot\b | n't\b
  | \b(?: cannot | never | neither | nor | rather\ than | instead\ of | except | excluding | other\ than | unlike
        | anything\ but | all\ but )\b
  | \brul\w+\ out\b | \b(?: eliminat | exclud | reject | discard | dismiss )\w*
  | \b(?: is | are | was | were | looks? | seems? )\ (?:\w+ly\ )?
       (?: wrong | incorrect | false | out | impossible | invalid )\b""", re.I | re.VERBOSE)
CLAUSE = re.compile(r"""
    [,;:!?()\[\]\n—–]+ | \.(?![0-9])
  | (?<!anything\ )(?<!\ball\ )\bbut\b
  | \b(?: so | hence | thus | therefore | then )\b
  | (?=\bnot\b) | (?=\b(?: rather\ than | instead\ of )\b)          # a clause begins with it""", re.I | re.VERBOSE)
AS_IT_IS = re.compile(r"(?!)")
LEAD_IN = re.compile(r"""^(?:
    (?: so | thus | hence | therefore | then | maybe | perhaps | probably | and
      | it'?s | it\ is | it\ must\ be | that\ is | that's
      | i\ (?:would\ )?(?: think | believe | guess | choose | pick | select | say )
      | (?:(?:my|the)\ )? (?:(?:final|correct|best|right)\ )* (?:answer|option|choice|letter)
        (?:\ is|\ must\ be|\ should\ be|\ would\ be|:)? )
    (?![\w'])[\ ,:]* )+""", re.I | re.VERBOSE)
OPTION_NAME = re.compile(r"^[a-z] ?= ?", re.I)  # x = B
NOT_ARTICLE = ("is|or|and|because|since|as|but|not|isn't|rather|instead|was|only|fits|seems|looks|matches|works|would"
               "|does|doesn't|cannot|can't|the|nor|over")
NOT_PRONOUN = "is|or|and|because|since|but|not|isn't|only|nor|fits|matches"
DOUBT = re.compile(r"""
    ^(?: or | and | no | wait | actually | but | maybe | perhaps | possibly | alternatively | hmm | also | either | unsure
       | not\ sure )\b
  | \b(?: also | as\ well | equally | either | maybe | perhaps | possibly | instead )\b
  | \btoo\W*$ | \bor\ (?:option\ )?[A-J]\b""", re.I | re.VERBOSE)
IS_RIGHT = re.compile(r"""
    ^(.{1,200}?)\ (?: is | must\ be | should\ be | would\ be | seems | looks )\ (?:the\ )?
    (?: correct | right | best | true )? (?:\ (?: answer | option | choice | one ))?$""", re.I | re.VERBOSE)


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
            re.compile(rf"({spelled})( ?[.:;),=\-–—]+ ?| )(\S.*)", re.I))


def _naming(phrase, options):
    """Keys of the options that a plain phrase names by letter or by text, the phrase being nothing else."""
    letter = phrase.rstrip("!")
    letters = {key for key in options if key == letter} or {key for key in options if key.casefold() == letter.casefold()}
    texts = {key: plain(text) for key, text in options.items() if plain(text)}
    spoken = polarity(phrase)
    return (letters or {key for key, text in texts.items() if text == phrase}
            or {key for key, text in texts.items() if same_value(phrase, text) or text.casefold() == spoken})


def _wavers(phrase, options):
    """Does a phrase say both yes and no, where these are the options, or make one depend on something?"""
    spoken = any(POLARITY.fullmatch(plain(text)) for text in options.values())
    return spoken and (hedged(phrase) or len(opinions(phrase)) > 1)


def _one_text(keys, options):
    return len({key(plain(options[letter])) for letter in keys}) == 1


def _words(text):
    return " " + " ".join(re.findall(r"\w+", key(text))) + " "


def _stated(phrase, options):
    """Keys of the options that a phrase states and says nothing else ("So it must be (B)", "B is correct"), or none."""
    if len(phrase) > 400:
        return set()
    phrase = plain(re.sub(r"^[\s#>•-]+", "", phrase))
    for dress in (AS_IT_IS, LEAD_IN):
        phrase = plain(dress.sub("", phrase, count=1))
        if named := _naming(phrase, options):
            return named
        if (label := _patterns(tuple(options))[3].fullmatch(phrase)) and _naming(plain(label[3]), options):  # B. the red cup
            return _naming(label[1], options) & _naming(plain(label[3]), options)
        if (right := IS_RIGHT.match(phrase)) and (named := _naming(plain(right[1]), options)):
            return named
    return set()


def _lead(text, options):
    """Keys of the option that a text states first and then only explains, whatever letters the explanation holds; else none."""
    line, _, after = text.strip().partition("\n")
    sentence = SENTENCE_END.split(line, maxsplit=1)[0]
    stated, rest = _stated(BECAUSE.sub("", sentence), options), line[len(sentence) + 1:] + "\n" + after
    if not stated:
        stated, said = _labelled_lead(sentence, options)
        rest = said + rest
    return set() if not stated or not rest.strip() or _doubted(stated, rest, options) else stated


def _labelled_lead(sentence, options):
    """(keys, explanation) of "B: A is too heavy", "(B) A is ..." and "B (A is ...)"; no keys where the rest is another answer."""
    label = _patterns(tuple(options))[3].match(plain(sentence[:400]).lstrip("([<"))
    if not label:
        return set(), ""
    letter, mark, said = label.groups()
    apart = mark[0] in ".:;)—–" or mark.strip() and mark[0] == mark[-1] == " " or said.startswith("(")
    doubt = DOUBT.search(said.lstrip("(").partition(". ")[0])
    explains = len(said.split()) > 2 and not doubt and not _stated(BECAUSE.sub("", said), options)
    return (_naming(letter, options), said) if apart and explains else (set(), "")


def _doubted(stated, rest, options):
    """Does what follows a stated answer take it back or state another one?"""
    rest = rest.strip()
    if DOUBT.match(rest) or RETRACTION.search(rest):
        return True
    last = [sentence for sentence in SENTENCE_END.split(rest) if sentence.strip()][-1:]
    cued = [_sentence(rest[cue.end():]) for cue in list(CUE.finditer(rest))[-8:]]
    others = [rest.partition("\n")[0], *last, *cued]
    return any(_stated(BECAUSE.sub("", said), options) - stated for said in others)


def _chosen(phrase, options):
    """Keys of the options that a phrase settles on: a set, empty for a hedge, a negation or a contradiction (letter
    against text), None where no option is mentioned. More than one key only where these options have one text."""
    if "\n" in phrase.strip() and (lead := _lead(phrase[:LONGEST_TAIL], options)):
        return lead if _one_text(lead, options) else set()
    phrase = plain(phrase)
    mention, dressed, listed, labelled = _patterns(tuple(options))
    for dress in (AS_IT_IS, LEAD_IN, OPTION_NAME, BECAUSE):
        phrase = plain(dress.sub("", phrase, count=1))
        if named := _naming(phrase, options):
            return named if _one_text(named, options) else set()
        if _wavers(phrase, options):
            return set()
    phrase = dressed.sub(lambda found: found[1].upper(), phrase)
    if (label := labelled.fullmatch(phrase)) and (label[2] != " " or label[1].isupper()):
        letter, (_, mark, rest) = _naming(label[1], options), label.groups()
        if texts := _naming(plain(rest), options):
            return letter & texts
        if lead := _lead(phrase, options):
            return lead
        phrase = label[1].upper() + mark + rest
    phrase = listed.sub(lambda found: found[0].replace(",", " "), AUXILIARY.sub(r"\1n't", phrase))
    return _affirmed(phrase, options, mention)


def _affirmed(phrase, options, mention):
    """The options named in the clauses of a phrase that are not negated, as _chosen returns them."""
    upper, named, mentioned = {key.upper(): key for key in options}, set(), False
    for clause in filter(str.strip, CLAUSE.split(phrase)):
        letters = {upper[letter] for letter in mention.findall(clause)}
        negated = NEGATION.search(clause)
        texts = _naming(plain(LEAD_IN.sub("", clause.strip(), count=1)), options) if not negated and len(clause) < 200 else set()
        if letters and not texts:  # "the red cup (C)"
            within = {key for key, text in options.items() if len(_words(text)) > 4 and _words(text) in _words(clause)}
            texts = within if not letters & within else set()
        mentioned = mentioned or bool(letters or texts)
        named |= set() if negated else letters | texts
    if not mentioned:
        return None
    return named if len(named) == 1 else set()


# --- Answers ------------------------------------------------------------------------------------------------------

CUE = re.compile(r"""
    (?<!other\ )(?<!wrong\ )(?<!incorrect\ )\b(?:answer|option|choice)(?:\ to\ (?:the|this|that)\ question)?[*_ ]*
    (?: : | =
      | (?: is | was
          | (?: must | should | would | could | can | may | might | will | has\ to | seems\ to | appears\ to )\ be )\b(?!['’]) )
    [:*_ \n]*""", re.I | re.VERBOSE)
RETRACTION = re.compile(r"""
    (?: ^ | [.!?,;:—–\n-]\s* | \b(?:no|but|oh|hmm|or)\s+ )         # "the cup actually moves" takes nothing back
    (?: wait | actually | scratch\ that | correction | on\ second\ thought )\b[,:. ]*""", re.I | re.VERBOSE)
SENTENCE_END = re.compile(r"\n|(?<!\b[A-Za-z])[.!?。](?=\s)")


def extract_answer(text, options=None):
    r"""The final answer of a completion, or None: the last box after </think> (of the whole text where none closes),
    else the last <answer>, else what follows the last cue ("the answer is"), else an option stated first and explained
    afterwards, else the end of the last line. A last box or tag that never closes is no answer, and no earlier one
    stands in for it.

    >>> extract_answer(r"\boxed{B} no wait, \boxed{\frac{3}{7}}")
    '\\frac{3}{7}'
    >>> extract_answer("B\n\nExplanation: block A is too heavy", {"A": "left", "B": "right"})
    'B'
    >>> extract_answer(r"<think> maybe \boxed{C} </think> I am not sure.", {"C": "the ramp"}) is None
    True
    """
    options, final = read_options(options), completion_text(text).rpartition("</think>")[2]
    if BOX.search(final):
        return (boxes(final) or [None])[-1]
    if "<answer>" in final:
        return tagged(final, "answer")[-1] or None
    if "<think>" in final:  # thinking that was cut off has said nothing final
        return None
    tail = unlatex(final[-LONGEST_TAIL:]).replace("**", "").replace("`", "").strip()
    return _said_option(tail.replace("*", ""), options) if options else _said_value(tail)


def _sentence(text):
    """The first sentence of a text."""
    return SENTENCE_END.split(text.lstrip(), maxsplit=1)[0]


def _said_option(tail, options):
    """The option stated after the last cue or retraction that states one, else the one stated first and then explained,
    else by the last, else the first sentence."""
    tail = _without_echo(tail, options)
    cues = [found.end() for found in CUE.finditer(tail)]
    if not cues and _wavers(tail, options):
        return None
    starts = sorted(cues + [found.end() for found in RETRACTION.finditer(tail)])[-8:]
    sentences = [sentence for sentence in SENTENCE_END.split(tail) if sentence.strip()] or [""]
    first = sentences[0] if _naming(plain(re.split(r"[.):]\s", sentences[0] + " ")[0]), options) else ""
    said_after = [_sentence(tail[start:]) for start in reversed(starts)]
    lead, mention = _lead(tail, options), _patterns(tuple(options))[0]
    for said in said_after + ([] if lead else [sentences[-1], first]):
        chosen = _chosen(said, options)
        if chosen is not None and (chosen or not lead or lead & set(mention.findall(said))):  # "not A" takes no lead back
            return min(chosen) if len(chosen) == 1 else said.strip() if chosen else None
    return min(lead) if lead else None


def _without_echo(tail, options):
    """A completion's text without the list of options that it repeats ("A. the left drawer", a line each)."""
    label = _patterns(tuple(options))[3]
    own = {line: found[1] for line in tail.split("\n") if len(line) < 400 and (found := label.fullmatch(plain(line)))
           and key(plain(options.get(found[1], ""))) == key(plain(found[3]))}
    return "\n".join(line for line in tail.split("\n") if line not in own) if len(set(own.values())) > 1 else tail


def _said_value(tail):
    """What follows the last cue, else the last colon of the last line, else the sentence that begins with yes or no,
    else the last sentence."""
    if cues := list(CUE.finditer(tail)):
        said = BECAUSE.sub("", _sentence(tail[cues[-1].end():]))
        return said.strip() or None
    if polarity(tail) or hedged(tail):
        return tail
    line = tail.rpartition("\n")[2]
    if len(opinions(line)) > 1 or opinions(line) and CONDITION.search(line):
        return line  # it falls, so yes; or rather no
    if closing := re.search(r"[,;—] ?(?:(?:so|hence|thus) )?(yes|no|true|false)[.!]*$", line, re.I):
        return closing[1]
    said = re.split(r":\s", line)[-1]
    return (said if said != line else re.split(r"(?<=[.!?])\s", line)[-1]).strip() or None


def answers_match(prediction, answer, options=None):
    r"""Does a prediction (None: no answer) say the ground truth, given as an option's letter, its text, or a value?

    Letters and texts are read through the options; a hedge, a negation, a condition or a letter that contradicts its
    text never matches. Numbers are compared exactly, units by dimension and factor, formulas as exact.py says:
    exactly, letters standing for real numbers; tuples and intervals with their brackets, sets in any order.

    >>> answers_match(r"\textbf{(C)}", "C", {"B": "the cup", "C": "the ramp"}), answers_match("0.35 m", "35 cm")
    (True, True)
    >>> answers_match("A or C", "C", {"A": "the cup", "C": "the ramp"}), answers_match("50", "50%")
    (False, False)
    """
    if not prediction or not answer:
        return False
    options = read_options(options) or (dict.fromkeys("ABCDEFGHIJ", "") if re.fullmatch("[A-J]", plain(answer)) else None)
    if options:
        said, truth = _chosen(prediction, options), _chosen(answer, options)
        return bool(said and truth and said & truth)
    said, truth = plain(prediction), plain(answer)
    if not said or not truth:
        return False
    if {said.casefold(), truth.casefold()} & {"yes", "no", "true", "false"} and polarity(said):
        return polarity(said) == polarity(truth)
    return same_value(said, truth) or same_value(plain(LEAD_IN.sub("", said)), truth)


def check_answer(answer, options=None):
    """Raise ValueError where a ground truth cannot be read: the loader's check, so that it never becomes a reward.

    >>> check_answer("E", {"A": "left", "B": "right"})
    Traceback (most recent call last):
    ValueError: answer 'E' names none of the options ['A', 'B']: write one letter or the text of one option
    """
    options = read_options(options)
    if not isinstance(answer, str):
        raise ValueError(f"answer {answer!r} is no text: write it as a string")
    if not plain(answer):
        raise ValueError(f"answer {answer!r} is empty: give the record's answer, or drop the record")
    if options is None and re.fullmatch(r"[A-Z]", plain(answer)):
        raise ValueError(f"answer {answer!r} is a letter without options: give the options, or the answer in words")
    if options and not _chosen(answer, options):
        raise ValueError(f"answer {answer!r} names none of the options {list(options)}: "
                         "write one letter or the text of one option")
    if options and len(_chosen(answer, options)) > 1:
        raise ValueError(f"answer {answer!r} is the text of several options: write the letter that is meant")
