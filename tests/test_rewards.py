r"""rewards.py: every recorded case, further cases of the same kinds with the reason beside each, hostile text, TRL's contract."""
import doctest
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rewards
from answers import exact, formulas, polarity, reading, values
from rewards import (
    accuracy_reward,
    answers_match,
    check_answer,
    extract_answer,
    format_reward,
    judgement_reward,
    parse_critique,
    parse_verdict,
    presence_format_reward,
    self_prediction_reward,
)

CASES = Path(__file__).parent / "cases"
OPTIONS = {"A": "the left drawer", "B": "the red cup", "C": "the ramp", "D": "nothing moves"}
YES_NO = {"A": "yes", "B": "no"}
TO_I = {letter: f"item {number}" for number, letter in enumerate("ABCDEFGHI")}
UNITS = {"A": "1 MeV", "B": "5 mW", "C": "5 MW", "D": "1/2", "E": "3.2 MeV"}
TWINS = {"A": "the ramp", "B": "the ramp and the cup", "C": "the cup", "D": "the ramp"}
LOWER = {"a": "left", "b": "right", "c": "All of the above"}
CRITIQUE = r"<pred_think> x </pred_think> <pred> B </pred> <think> y </think> \boxed{Response 1}"


def read(name):
    return [json.loads(line) for line in (CASES / name).read_text(encoding="utf-8").splitlines()]


def right(text, answer, options=None):
    return answers_match(extract_answer(text, options), answer, options)


@pytest.mark.parametrize("case", read("answers.jsonl"), ids=lambda case: case["why"][:60])
def test_recorded_answers(case):
    assert right(case["text"], case["answer"], case["options"]) is case["expect"], case["why"]


@pytest.mark.parametrize("case", read("verdicts.jsonl"), ids=lambda case: case["why"][:60])
def test_recorded_verdicts(case):
    critique = parse_critique(case["text"])
    assert (critique.verdict, critique.format_score) == (case["expect"], case["format"]), case["why"]
    if "expect_prediction" in case:
        assert critique.prediction == case["expect_prediction"], case["why"]


@pytest.mark.parametrize("case", read("formulas.jsonl"), ids=lambda case: f"{case['a']} | {case['b']}")
def test_recorded_formulas(case):
    """Both ways, boxed and bare."""
    for said, truth in ((case["a"], case["b"]), (case["b"], case["a"])):
        assert answers_match(said, truth) is case["same"], case["why"]
        assert right(rf"\boxed{{{said}}}", truth) is case["same"], case["why"]


# reason, answer, options, texts that match, texts that do not ("|" parts texts; what stands in [[ ]] is boxed)
ANSWERS = [
    ("a LaTeX wrapper is dress", "C", OPTIONS,
     r"[[\left(C\right)]]|[[\mathrm{C}]]|[[\boldsymbol{C}]]|[[$C$]]|[[\(C\)]]|[[\displaystyle C]]|[[\,C\,]]|$[[C]]$"
     r"|\[[[\text{(C) the ramp}]]\]|[[\text{C}.]]|So the answer is \textbf{C}.|Answer: $C$|\boxed {C}|[[\boxed{C}]]|\fbox{C}", ""),
    ("a letter may be dressed", "C", OPTIONS,
     r"\boxed{[C]}|[[Option C]]|[[option (c)]]|[[**C**]]|[[C:]]|[[C - the ramp]]|[[(C) the ramp]]|[[C) the ramp]]|[[c. The Ramp.]]"
     "|[[C the ramp]]|[[the ramp (C)]]|[[C, the ramp]]|[[C = the ramp]]|[[C?]]|[[I think C]]|[[The answer is C]]", "[[C-shaped]]|[[E]]|[[CC]]"),
    ("letter against text is a contradiction", "C", OPTIONS, "",
     "[[the red cup (C)]]|[[C: nothing moves]]|[[(B) the ramp]]|[[Option B: the ramp]]|Answer: B - the ramp|[[A the ramp]]|[[the ramp, B]]"),
    ("several options are a hedge", "A", OPTIONS, "[[A]]|[[A only]]",
     "[[A, B]]|[[A and C]]|[[either A or B]]|[[both A and B]]|[[both]]|[[AB]]|[[A & B]]|[[A or the ramp]]|[[A (or B)]]|[[A; B]]|[[A B]]"
     "|[[a/b]]|[[a or b]]|[[A, B, C, D]]|[[maybe A, maybe B]]|The answer is either A or B|Answer: A/B|Answer: A, B|[[the left drawer or the ramp]]"),
    ("all of the above counts only as an option", "D", OPTIONS, "", "[[all of the above]]|[[none of the above]]|None of these."),
    ("what is negated is no answer", "C", OPTIONS,
     "[[C, not A]]|[[C not A]]|[[C rather than A]]|[[C, instead of A]]|It cannot be A, so it must be C|Neither A nor B, so C|Not A, B, or D, so C"
     "|A is wrong; it's C|I'd say C rather than A|B is not correct, so C|Option A does not fit. Option C does.|the ramp, not the red cup"
     "|The answer is not the red cup but the ramp|The answer isn't A, it is C",
     "[[not C]]|[[isn't C]]|[[cannot be C]]|It isn't C|Answer: not C|not the ramp|The answer cannot be C|The answer is not C but D"),
    ("the rejected letter after because is not the answer", "B", OPTIONS,
     "[[B because A is dry]]|The answer is B since A and C are dry|Answer: B. The ramp is wet.|Answer: B. A dog is shown.|Answer: B. Block A is on it."
     "|The answer is B.\nA is too far.|The ramp is wet, so B", ""),
    ("cues in every dress", "D", OPTIONS,
     "**Answer:** D|**Final Answer**: (D)|### Answer: D|Final answer: D.|The correct option is (D).|The correct choice is **D**|Answer = D"
     "|Answer:\nD|my answer would be D|The answer must be d.|the answer is: D|Answer: option D: nothing moves|Answer: Nothing moves", ""),
    ("other languages: a colon and one letter", "C", OPTIONS, "Antwort: C|Réponse : C|答案：C|答案是C|Ответ: C.|Risposta: (C)|正解はC。", ""),
    ("a retraction in prose", "D", OPTIONS,
     "Answer: B. No wait, D.|The answer is B. Actually, the answer is D|Answer: B. Answer: D|Answer: D. Wait, let me check.", ""),
    ("a bare answer", "B", OPTIONS,
     "B|(B)|B.|b|B. the red cup|B) the red cup|B\nbecause the cup is red|The red cup.|It is the red cup.|I choose B|So it must be B.|[[Red Cup]]|[[a red cup]]",
     "[[the red cups]]|[[cup]]|[[blue cup]]|I am not sure|No answer.|[[?]]"),
    ("the article a and the option A", "A", OPTIONS, "A|a|A.|The answer is A|The answer is a|It is A|[[A]]|(A)",
     "A ball rolls down.|a ball|The answer is a ball|The answer is A dog|I notice that it rolls. A cup falls."),
    ("the pronoun I and the option I", "I", TO_I, "I|(I)|The answer is I|The answer is I.|I would choose I|[[I]]",
     "I notice it falls.|I think it is B|I am sure. Answer: C|[[I think it is A]]|I can see a dog"),
    ("empty, cut off, or quoted", "B", OPTIONS, r"I put [[]] . [[B]]|[[B]] as asked: \boxed{}|<think>[[C]]</think> so B|<answer>A</answer> <answer>B</answer>",
     r"[[ ]]|[[\text{}]]|<answer></answer>|<answer>B|\boxed{\text{B}|[[B]] and \boxed{|<think>It is B.</think> I do not know.|<think> so B|<ANSWER>B</ANSWER> C|   "),
    ("end tokens are no text", "B", OPTIONS, "[[B]]</s>|[[B]]<｜end▁of▁sentence｜>|B<eos>|<answer>B</answer></s>", ""),
    ("the ground truth may be a text or dressed", "C. the ramp", OPTIONS, "[[C]]|[[the ramp]]", "[[B]]"),
    ("the ground truth may be the text", "The ramp.", OPTIONS, "[[C]]|[[the ramp]]", "[[B]]|[[the red cup]]"),
    ("yes and no as options", "B", YES_NO, "No, it does not move.|I notice nothing: no|the answer is no|[[B. no]]|No. It stays.",
     "[[A. no]]|[[not]]|Nothing moves|I know it|[[yes or no]]|[[Yes/No]]|[[Yes, it falls]]"),
    ("options with units keep their case", "B", UNITS, "[[5 mW]]|[[0.005 W]]|[[B. 5 mW]]", "[[5 MW]]|[[5 kW]]|[[5]]"),
    ("options with numbers", "D", UNITS, r"[[0.5]]|[[\frac{1}{2}]]|[[.50]]", "[[50%]]"),
    ("options with one text", "D", TWINS, "[[the ramp]]|[[D]]|[[D. the ramp]]", "[[A]]|[[the ramp and the cup]]"),
    ("an option's text inside another's", "B", TWINS, "[[the ramp and the cup]]|[[B. the ramp and the cup]]", "[[the ramp]]|[[B the ramp]]|[[the cup]]"),
    ("options in lower case", "b", LOWER, "[[B]]|[[b]]|Answer: (b)|So it is B.|[[right]]", "[[a]]|[[left]]"),
    ("all of the above as an option", "c", LOWER, "[[all of the above]]|[[C]]", "[[above]]"),
    ("lengths", "35 cm", None, "[[35cm]]|[[3.5e-1 m]]|[[0.35 m]]|[[350 mm]]|[[35 centimeters]]|The answer is 35 cm because it is short.",
     "[[35]]|[[35 m]]|[[35 CM]]|[[35 kg]]|[[35 or 36 cm]]|[[3.5 cm]]"),
    ("speeds", "5 m/s", None, r"[[18 km/h]]|[[5\,\mathrm{m/s}]]|[[5 m s^{-1}]]|[[5 meters per second]]", "[[5 km/h]]|[[5 m]]|[[5 m/s^2]]"),
    ("temperatures have an offset", "35 °C", None, r"[[308.15 K]]|[[35^\circ C]]|[[35^{\circ}\text{C}]]|[[95 °F]]", "[[35 K]]|[[35]]"),
    ("units keep their case", "3 mW", None, "[[0.003 W]]", "[[3 MW]]|[[3 mw]]"),
    ("percent", "50%", None, r"[[50 \%]]|[[50 percent]]|[[50 %]]|[[50.0%]]", "[[50]]|[[0.5]]|[[5%]]"),
    ("numbers", "1000", None, r"[[1,000]]|[[1{,}000]]|[[1\,000]]|[[1e3]]|[[10^{3}]]|[[1 \times 10^3]]|[[+1000]]|[[1000.]]|[[2000/2]]|[[x = 1000]]|So it is 1000",
     "[[10,00]]|[[-1000]]|[[100]]|[[1000 or 1]]|[[1, 000]]|[[1000!]]"),
    ("a whole number before a fraction is added", "1.5", None, r"[[1\frac{1}{2}]]", r"[[\frac{11}{2}]]|[[11/2]]"),
    ("a tuple is not its numbers", "(1, 2)", None, "[[(1,2)]]", "[[12]]|[[1]]"),
    ("fractions and signs", "-0.5", None, r"[[-\frac{1}{2}]]|[[−1/2]]|[[-.5]]|[[-0.50]]", "[[0.5]]|[[3-3.5]]|[[-1/3]]"),
    ("formulas", r"\frac{\sqrt{3}}{2}", None, r"[[\frac{1}{2}\sqrt{3}]]|[[\sqrt{3}/2]]", r"[[\sqrt{3}]]|[[\frac{3}{2}]]|[[9^{9^{9^9}}]]"),
    ("yes and no in words", "no", None, "No, it does not move.|It is moving: no|It stays where it is, so no.|[[NO]]|the answer is no.|No it does not. It stays.",
     "Not really|None|Nobody|yes and no|No, yes|no one moves it|Yes, no doubt|know"),
    ("text", "the red cup", None, r"[[Red cup.]]|[[\text{a red cup}]]", "[[cup]]|[[red]]|[[the blue cup]]"),
]


@pytest.mark.parametrize("reason, answer, options, matching, other", ANSWERS, ids=[case[0] for case in ANSWERS])
def test_further_answers(reason, answer, options, matching, other):
    for texts, expected in [(matching, True), (other, False)]:
        for text in filter(None, texts.split("|")):
            text = text.replace("[[", r"\boxed{").replace("]]", "}")
            assert right(text, answer, options) is expected, (reason, text, extract_answer(text, options))


VERDICTS = [
    (1, "the wordings of one choice", r"Response one|first response|the first|(1)|**Response 1**|Response~1|Response1|Response #1|[Response 1]|"
        r"Response 1!|Answer: 1|Response A|Response a|Response I|Response 1 wins|1 is better|Candidate 1|Response 1's answer"),
    (2, "the wordings of the other", r"Response two|second|the second response|#2|2.|$2$|\text{\textbf{Response 2}}|\text{Response }2|RESPONSE 2|response b|"
        r"Response\_2|Response No. 2|The better response is Response 2|Answer 2 is the better one|Response II"),
    (1, "compared, the first preferred", "Response 1 is better than Response 2|Response 1 > Response 2|1 > 2|Response 1, not Response 2|"
        "Response 2 is not as good as Response 1|Response 2 is worse|Response 1 rather than Response 2|Response 1 is correct and Response 2 is wrong|"
        "The first response is better than the second|Response A is better than Response B|Response 1 is better because it has 2 steps"),
    (2, "compared, the second preferred", "Response 1 < Response 2|Response 1 is inferior to Response 2|Not Response 1 but Response 2|Response 2 beats Response 1|"
        "I prefer Response 2 to Response 1|Between Response 1 and Response 2, Response 2 is better|It isn't Response 1, it is Response 2|"
        "Response 1 is wrong, Response 2 is right|Response 1 is less accurate than Response 2|Compared to Response 1, Response 2 is better"),
    (None, "no choice", "neither|tie|both|Both are good|Response 1 and 2|Responses 1 and 2 are equal|Response 1/2|Response A or B|1, 2|1 or 2|Response 1, Response 2|"
        "Response 1 is as good as Response 2|Neither Response 1 nor Response 2|Response|Either|"),
    (None, "a refusal prefers nothing by itself", "not Response 1|Response 1 is wrong|Response 1 is not better than Response 2|Response 1 is no better than Response 2|"
        "Response 1 is not worse than Response 2"),
    (1, "the former", "the former|Former|former.|The former is better|the former response|the former, not the latter|the latter is worse than the former"),
    (2, "the latter", "the latter|latter.|the latter response|The latter is better than the former|the former is worse than the latter|I prefer the latter to the former"),
    (None, "neither of the two by name", "the former or the latter|both the former and the latter|the former and the latter are equal|not the latter|formerly|later|the first or the second"),
    (1, "other characters", "Response １|①|Ⅰ is a number, Response Ⅰ|１ is better|Response 1\u200b|Ｒｅｓｐｏｎｓｅ　１"),
    (None, "a power is no candidate", "Response ²|²|1²"),
    (None, "an answer to the question is no verdict", "A|B|I|Answer A|Option A|12|3|1.5|2 m|x = 2|1/3|2%|-1|1:2|yes|Response 12|Response 3"),
]


@pytest.mark.parametrize("verdict, reason, texts", VERDICTS, ids=[case[1] for case in VERDICTS])
def test_further_verdicts(verdict, reason, texts):
    for text in texts.split("|"):
        assert parse_verdict(text) == verdict, (reason, text)


FORMATS = [  # text, (prediction, verdict, strict, presence), reason
    (CRITIQUE, ("B", 1, 1.0, 1.0), "canonical"),
    (CRITIQUE.replace("<pred_think> x </pred_think> <pred> B </pred>", "<pred> B </pred> <pred_think> x </pred_think>"), ("B", 1, 0.5, 1.0), "answered before thinking"),
    (CRITIQUE.replace("</pred_think> <pred> B </pred>", "<pred> B </pred> </pred_think>"), ("B", 1, 0.5, 1.0), "<pred> inside <pred_think>"),
    ("<think> y </think> <pred_think> x </pred_think> <pred> \\boxed{B} </pred> \\boxed{Response 1}", (None, 1, 0.5, 1.0), "judged before solving"),
    (CRITIQUE.replace("</pred>", "</pred></pred>"), (None, 1, 0.5, 1.0), "a doubled tag"),
    (CRITIQUE.replace("</think>", "</think> <think> z </think>"), ("B", 1, 0.0, 1.0), "two <think> blocks"),
    (CRITIQUE.replace("<think> y", "<think> "), ("B", 1, 0.0, 0.0), "an empty <think>"),
    (CRITIQUE.replace("<pred> B", r"<pred> \boxed{B"), (None, 1, 0.5, 1.0), "a box in <pred> that never closes"),
    (CRITIQUE.replace("<think>", "<Think>"), ("B", 1, 0.0, 0.0), "tags count only as written"),
    (CRITIQUE + r" \boxed{}", ("B", 1, 0.0, 1.0), "one box, and the echo is a second"),
    (CRITIQUE + r" \boxed{Respo", ("B", None, 0.0, 1.0), "no earlier box stands in for one that was cut off"),
    (r"\boxed{Response 1} " + CRITIQUE.replace(r"\boxed{Response 1}", ""), ("B", None, 0.0, 1.0), "the box before </think>"),
    (r"<pred_think> x </pred_think> <pred> \boxed{2} </pred> <think> y", ("2", None, 0.0, 0.0), "the prediction's box is no verdict"),
    (r"<think> y \boxed{Response 2}", (None, 2, 0.0, 0.0), "no <think> closes: the last box of the whole text"),
    (r"y </think> \boxed{Response 1}", (None, 1, 0.0, 0.0), "the template had opened <think>"),
]


@pytest.mark.parametrize("text, expected, reason", FORMATS, ids=[case[2] for case in FORMATS])
def test_formats(text, expected, reason):
    strict, presence = parse_critique(text), parse_critique(text, format="presence")
    assert (strict.prediction, strict.verdict, strict.format_score, presence.format_score) == expected
    assert strict[:2] == presence[:2]


@pytest.mark.parametrize("end", ["<|im_end|>", "<|endoftext|><|endoftext|>", "<|eot_id|>\n"])
def test_end_tokens(end):
    assert right(r"\boxed{B}" + end, "B", OPTIONS) and right("Answer: B" + end, "B", OPTIONS)
    assert parse_critique(CRITIQUE + end)[:3] == ("B", 1, 1.0)


def test_unknown_format_is_an_error():
    with pytest.raises(ValueError, match="strict or presence"):
        parse_critique("", format="loose")


@pytest.mark.parametrize("answer, options, said", [
    ("", None, "empty"), ("  ", OPTIONS, "empty"), (None, OPTIONS, "no text"), (3, None, "no text"), ("B", None, "letter without options"),
    ("E", OPTIONS, "none of the options"), ("the roof", OPTIONS, "none of the options"), ("A or B", OPTIONS, "none of the options"),
    ("B", '{"A": "x", "B": null}', "none of the options"), ("the ramp", TWINS, "several options"), ("A", ["x"], "write them as"), ("A", "{A: x", "write them as")])
def test_unreadable_ground_truth_is_an_error(answer, options, said):
    with pytest.raises(ValueError, match=said):
        check_answer(answer, options)


@pytest.mark.parametrize("answer, options", [("C", OPTIONS), ("(c)", OPTIONS), ("C.", OPTIONS), ("The ramp", OPTIONS), ("35 cm", None), ("yes", None),
                                             ("a", LOWER), ("A", '{"A": "x", "B": null}')])
def test_readable_ground_truth(answer, options):
    check_answer(answer, options)


# --- TRL's contract ---


def test_rewards_none_where_the_part_does_not_apply():
    said, rows = [CRITIQUE] * 4, dict(answer=["B"] * 4, options=[OPTIONS] * 4, preference=[1, 2, None, 1], self_reference=[True, None, True, False])
    assert self_prediction_reward([""] * 4, said, **rows, trainer_state=None) == [1.0, 1.0, None, None]
    assert judgement_reward([""] * 4, said, **rows) == [1.0, 0.0, None, 1.0]
    assert format_reward([""] * 4, said, **rows) == [1.0, 1.0, None, 1.0]
    assert accuracy_reward([""] * 4, [r"\boxed{B}"] * 4, **rows) == [None, None, 1.0, None]


def test_conversational_completions_and_arrow_columns():
    spoken = [[{"role": "assistant", "content": r"\boxed{B}"}], [{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{B}"}]}], r"\boxed{B}", None, []]
    options = [OPTIONS, json.dumps(OPTIONS), {**OPTIONS, "E": None}, OPTIONS, OPTIONS]
    assert accuracy_reward(None, spoken, ["B"] * 5, options) == [1.0, 1.0, 1.0, 0.0, 0.0]
    critic = [[{"role": "assistant", "content": CRITIQUE}], None]
    assert judgement_reward(None, critic, preference=[1, 1]) == [1.0, 0.0]
    assert format_reward(None, critic, preference=[1, 1]) == [1.0, 0.0]


def test_presence_is_laxer_than_strict():
    said = [CRITIQUE.replace("</pred>", "</pred></pred>"), "<think> y </think> \\boxed{Response 2}", ""]
    assert format_reward(None, said, preference=[1] * 3) == [0.5, 0.5, 0.0]
    assert presence_format_reward(None, said, preference=[1] * 3) == [1.0, 0.5, 0.0]
    assert presence_format_reward(None, said, preference=[1, 1, None], self_reference=[False] * 3) == [1.0, 1.0, None]
    assert presence_format_reward.__name__ == "presence_format_reward"


def test_no_reward_is_nan():
    """A table's empty cell comes as NaN: the part does not apply, as with None; a missing truth is never right."""
    nan, said = math.nan, [CRITIQUE] * 3
    rows = dict(answer=["B", nan, "B"], options=[OPTIONS, nan, nan], preference=[1.0, 1.0, nan], self_reference=[nan, True, nan])
    assert self_prediction_reward(None, said, **rows) == [1.0, 0.0, None]
    assert judgement_reward(None, said, **rows) == format_reward(None, said, **rows) == [1.0, 1.0, None]
    assert accuracy_reward(None, [r"\boxed{B}"] * 3, **rows) == [None, None, 1.0]
    assert accuracy_reward(None, [r"\boxed{B}"] * 2, ["B", nan]) == [1.0, 0.0]
    assert presence_format_reward(None, said, **rows) == [1.0, 1.0, None]


def test_missing_evidence_is_neither_none_nor_nan():
    """TRL turns None into NaN and leaves it out of a row's sum: what masks the whole row must be told apart."""
    assert rewards.NOT_ADMITTED == -math.inf


# --- Properties ---

FRAGMENTS = ["<think>", "</think>", r"\boxed{", r"\fbox{", "{", "}", "<pred>", "</pred>", "<pred_think>", "</pred_think>", "<answer>", "answer is ", "Answer: ",
             "not ", "Response 1 ", "Response 2", "(", ")", "7", "1,", "3.5 ", "m", " cm", "%", r"\text{", r"\frac", "\\", " ", "\n", "é中", "\0", "\ud800", "A", "B, ",
             "I ", "because ", ". ", "!", "^", "x^", "9^{", r"\sqrt{", "*", '"', "wait ", "either ", "$", "<|im_end|>", "rather than ", "the ramp ", "yes", " no ", "or ",
             "=", r"\{", r"\pm ", r"\sin ", "|", "dx", "²", "½", "Ｂ", "\u200b", "actually ", "if ", "the latter ", "\n\nB", "A: ", "B (", "_{"]


def read_everything(text):
    for options in (None, OPTIONS):
        said = extract_answer(text, options)
        assert said is None or isinstance(said, str) and said
        assert answers_match(said, "B", OPTIONS) in (True, False)
        assert answers_match(text, "35 cm") in (True, False) and answers_match(r"\pi", text) in (True, False)
    for format in ("strict", "presence"):
        critique = parse_critique(text, format)
        assert critique.verdict in (1, 2, None) and critique.format_score in (0.0, 0.5, 1.0)
    assert parse_verdict(text) in (1, 2, None)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)))
def test_no_text_raises(text):
    read_everything(text)


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=ascii)
def test_long_repetition_takes_linear_time(fragment):
    for frame in ("%s", r"\boxed{%s}", r"<pred>%s</pred> <think> x </think> \boxed{%s}", "answer is %s"):
        text = frame.replace("%s", (fragment * (100_000 // len(fragment) + 1))[:100_000])
        start = time.process_time()
        read_everything(text)
        assert time.process_time() - start < 2.5, frame  # ten readings, at most a quarter of a second each


@pytest.mark.parametrize("text", ["9^{9^{9^9}}", "9^9^9^9", "(99^{99})^{99}", "999999999!", "(x+y+z+w+a+b)^{99}", "((x+1)^{3}+1)^{3}", r"\sqrt[99]{9^{99}}", "(" * 17 + "x" + ")" * 17,
                                  "10^{999}", "1e999", "9 m^9^9^9", "9 m**9**9", "1/0", "5 degC/m", "5 is", "9 m^99", r"\ln(0)", "0^{-1}", "5 __import__", "1" * 2000])
def test_expressions_that_hang_a_library(text):
    start = time.process_time()
    for other in ("x^{2}", "5 m", r"\pi", "(x+y+z+a+b+c)^{98}"):
        assert answers_match(text, other) is answers_match(other, text) is False
    assert time.process_time() - start < 6


@given(st.fractions(min_value=-10**6, max_value=10**6, max_denominator=1000), st.fractions(min_value=-10, max_value=10, max_denominator=8))
def test_numbers_match_exactly_and_both_ways(a, b):
    assert answers_match(str(a), str(b)) is answers_match(str(b), str(a)) is (a == b)
    assert answers_match(rf"\frac{{{a.numerator}}}{{{a.denominator}}}" if a > 0 else str(a), str(a))


@given(st.integers(0, 10**9))
def test_a_thousands_separator_changes_nothing(number):
    assert answers_match(f"{number:,}", str(number)) and answers_match(f"{number} cm", f"{number * 10} mm")


@given(st.permutations(list(OPTIONS)), st.sampled_from(list(OPTIONS)), st.sampled_from(list(OPTIONS)))
def test_the_order_of_options_changes_nothing(order, said, truth):
    shuffled = {letter: OPTIONS[letter] for letter in order}
    for text in (said, OPTIONS[said], f"{said}. {OPTIONS[said]}"):
        assert right(rf"\boxed{{{text}}}", truth, shuffled) is (said == truth)


def test_threads_agree():
    """Rewards may be computed off the main thread, where no alarm can stop a library."""
    cases = read("formulas.jsonl")[::3]
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda case: values.same_value.__wrapped__(values.plain(case["a"]), values.plain(case["b"])), cases * 2))
    assert said == [case["same"] for case in cases] * 2


@pytest.mark.parametrize("module", [rewards, reading, polarity, values, formulas, exact], ids=lambda module: module.__name__)
def test_doctests(module):
    failed, tried = doctest.testmod(module)
    assert tried >= 1 and not failed
