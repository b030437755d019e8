r"""Yes and no in words: what an answer says that begins with one of them, and whether it takes it back.

A self-correction ("yes it does; actually no") and a condition ("yes if it rolls") are no answer; an idiom ("no problem")
and the other word in an explanation ("no, yes would be wrong") change nothing.

>>> polarity("Yes, there is no obstacle"), hedged("Yes, or no"), opinions("it falls, so yes; or rather no") == {True, False}
('yes', True, True)
"""
import re

BECAUSE = re.compile(r"""
    (?<=.)[,;(]*\ ?\b(?: because | since | as | due\ to | given\ that )\b.*
  | (?<=.)[,;(]\ ?(?: while | whereas )\b.*""", re.I | re.VERBOSE)
POLARITY = re.compile(r"(yes|no|true|false)\b(?!['-])", re.I)
IDIOM = re.compile(r"\bno (?:doubts?|problems?|questions?|worries|surprises?|wonder|matter|longer|more|less)\b", re.I)
NO_SUCH = re.compile(r"no (?:one|idea|way|clue|answer|evidence|information)\b", re.I)
CONDITION = re.compile(r"""
    (?<!\bas\ )(?<!\beven\ ) \bif\b                         # yes if it rolls; but not "even if it rolls"
  | \b(?: unless | otherwise | assuming | depend\w* | provided\ that | in\ case | (?:as|so)\ long\ as | only\ when )\b
  | (?:^\w+|,)\ provided\b""", re.I | re.VERBOSE)
STANDALONE = re.compile(r"""
    (?: ^ | [,;:.!?()/—–\n-]\s*                             # a clause of its own
      | \b(?: actually | wait | but | or | and | otherwise | rather | maybe | perhaps | probably | then | else | so | hence
            | thus | say | think | answer\ is | sorry | correction | well | mean )\s+ )
    (yes|no|true|false)\b(?!['-])
    (?= \s*(?: $ | [,;:.!?()/—–\n-]
      | (?: otherwise | if | when | unless | because | since | it | they | he | she | this | that | the | wait | actually
          | sorry | else | and | or | but )\b ))""", re.I | re.VERBOSE)
TAKES_BACK = r"\b(?:actually|wait|scratch\ that|correction|on\ second\ thought|sorry|i\ mean|rather|hmm|well)\b[,:\ ]*"
SUBJECT = r"(?:it|they|he|she|that|this|the\ \w+)\ "
UNDONE = r"\b(?:scratch\ that|correction|on\ second\ thought)\W*$"
DENIED = re.compile(rf"""
    (?: {TAKES_BACK} | \b(?:or|maybe|perhaps)\ ) (?:{SUBJECT})? (?:\w+\ )?
    (?: not\b | \w+n't\b | never\b | cannot\b )                    # yes; actually it does not
  | \bnot\ (?: really | sure | exactly | quite | certain | necessarily )\b
  | {UNDONE}""", re.I | re.VERBOSE)
AFFIRMED = re.compile(rf"""
    (?: {TAKES_BACK} | \bbut\ ) {SUBJECT}
    (?: does | do | did | is | are | was | were | will | would | can | could | has | had )\b (?!\ not|n't)   # no; wait, it does
  | \bnot\ (?: sure | certain )\b
  | {UNDONE}""", re.I | re.VERBOSE)


def _means_yes(word):
    return word.casefold() in ("yes", "true")


def opinions(text):
    """The signs of all yes, no, true and false that stand for themselves: True, False or both."""
    return {_means_yes(word) for word in STANDALONE.findall(IDIOM.sub(" ", text))}


def polarity(text):
    """yes, no, true or false where a text begins with it and does not take it back or make it depend, else None.

    >>> [polarity(said) for said in ("yes, no problem", "no doubt: yes", "yes it does; actually no", "Yes if it rolls")]
    ['yes', 'yes', None, None]
    """
    text = IDIOM.sub(" ", text).lstrip(" ,.;:!?-—–")
    word = POLARITY.match(text)
    if not word or NO_SUCH.match(text):
        return None
    yes = _means_yes(word[1])
    first = BECAUSE.sub("", re.split(r"[.!?\n]\s", text, maxsplit=1)[0])
    taken_back = (DENIED if yes else AFFIRMED).search(text) or CONDITION.search(first) or opinions(text) - {yes}
    return None if taken_back else word[1].casefold()


def hedged(text):
    """Does a text begin with yes or no and then take it back?"""
    return bool(POLARITY.match(text)) and not NO_SUCH.match(text) and not polarity(text) and not IDIOM.match(text)
