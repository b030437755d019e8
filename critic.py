"""The trained critic at inference: solve once, judge many, and a probability with every verdict.

    python critic.py --model runs/demo/stage2 --frames f1.png f2.png --question "Which block falls?" --responses a.txt b.txt
    python critic.py --model runs/stage2 --video clip.mp4 --question "What next?" --options '{"A": "lift", "B": "wait"}' \\
        --responses a.txt b.txt --solve alone
    python critic.py --base_url http://localhost:8000/v1 --model phycritic --video clip.mp4 --question "What next?" \\
        --responses a.txt b.txt

It prints the critic's own answer, its comparison, its verdict and p(first response is better), in both orders.

Where the critic's own answer (its self-prediction) comes from is `solve`:

    each    every judgement solves the question for itself, as in training (the naive way)
    first   the question's first judgement solves it; its text up to </pred> opens every later judgement
    alone   the question is asked by itself, with stage 1's prompt, before any response is seen, so that none can sway it.
            What it reasons and answers is put into the critic's own form, <pred_think> and <pred>

`alone` asks in the question's prompt, since that is what stage 1 trained: a critic's prompt without responses, or with
"..." for them, is one it has never seen, and it answers badly there (experiments/LOG.md).

A probability is read at the number inside the last box: P(1) / (P(1) + P(2)) at temperature 1, all spellings summed.
"""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tqdm import tqdm

import data
import prompts
import rewards
from data import command
from data.files import json_sha
from judging import judges
from judging.calls import Call, Missing, Reply, Tokens, image_sha
from judging.play import ALONE, COSTS, texts_of
from judging.verdicts import verdict_place

CLOSE = "</pred>"


@dataclass(frozen=True)
class Judgement:
    """One judgement. prediction, verdict and p_first are None where unreadable; verdict and p_first speak of the record's
    response_1, whichever was shown first. What is known right or wrong is so only where the item gave an answer.

    `text` begins with the self-prediction, `reused` says that it was made before (then its tokens count as prompt).
    `computed_prompt_tokens` were run through the model, the others of `prompt_tokens` came from a cache. `repeated`: the
    same judgement was made before and cost nothing now. `missing`: why a server gave none. `solves`: its self-prediction
    is the question's from here on.
    """

    id: str
    order: str
    text: str
    prediction: str | None
    verdict: int | None
    p_first: float | None
    prediction_correct: bool | None
    verdict_correct: bool | None
    prompt_tokens: int
    computed_prompt_tokens: int
    completion_tokens: int
    seed: int
    model: str
    prompt_sha: str
    reused: bool = False
    repeated: bool = False
    missing: str | None = None
    solves: bool = False


def own_part(text):
    r"""The self-prediction of a judgement, up to </pred>, or None where it has none that can be read.

    >>> own_part(r"<pred_think> low </pred_think> <pred> B </pred> <think> 1 says B </think> \boxed{Response 1}")
    '<pred_think> low </pred_think> <pred> B </pred>'
    """
    before, close, _ = text.partition(CLOSE)
    part = before + close
    return part if close and rewards.parse_critique(part).prediction else None


def in_critics_form(text, options=None):
    r"""An answer to the question's own prompt as a self-prediction, or None where no answer can be read.

    >>> in_critics_form(r"The ball is fast. \boxed{yes}")
    '<pred_think> The ball is fast </pred_think> <pred> yes </pred>'
    """
    answer = rewards.extract_answer(text, options)
    if answer is None:
        return None
    box = [found.start() for found in rewards.BOX.finditer(text)]
    reasoning = text[: box[-1]] if box else text
    reasoning = reasoning.replace("<think>", "").replace("</think>", "").strip().rstrip(".:").rstrip()
    return own_part(f"<pred_think> {prompts.escape(reasoning)} </pred_think> <pred> {prompts.escape(answer)} {CLOSE}")


def majority(parts, options=None):
    """The first of the self-predictions that most of them agree with (rewards.answers_match); None where none is readable.

    >>> majority([None] + [f"<pred> {said} </pred>" for said in ("red", "blue", "the blue")])
    '<pred> blue </pred>'
    """
    said = {part: rewards.parse_critique(part).prediction for part in parts if part}
    counts = Counter(filter(None, parts))
    agree = {
        part: sum(n for other, n in counts.items() if rewards.answers_match(said[other], said[part], options)) for part in said
    }
    return max(agree, key=agree.get, default=None)


class Critic:
    """A critic of a local folder or hub id (`path`), or on a server (`base_url` and `model`).

    solve: see the top of the file. votes: the self-prediction is made so often, at `temperature`, and the majority's is
    taken. Above temperature 0 a text depends on `seed`, the item's id and its prompt.
    `spent` are the tokens of everything that was run, self-predictions included: input, of it cached, output. `unsolved`
    counts questions that were asked and gave no self-prediction that can be read: their judgements solve for themselves.
    Equal text, options and frames are the same question, whatever their ids: it is solved once. keep=False forgets what
    was written once it is handed out, so that memory stays small and the same judgement is made anew.
    """

    def __init__(
        self, path=None, base_url=None, model=None, prompt="self_ref", solve="each", votes=1, max_new_tokens=512,
        temperature=0.0, seed=0, batch_size=32, keep=True,
    ):  # fmt: skip
        if bool(path) == bool(base_url) or bool(base_url) != bool(model):
            raise ValueError("give either path, or base_url and model")
        if prompt not in prompts.VARIANTS or solve not in ("each", "first", "alone"):
            raise ValueError(f"prompt is one of {list(prompts.VARIANTS)}, solve each, first or alone; got {prompt!r}, {solve!r}")
        if prompt == "no_self_ref" and solve != "each":
            raise ValueError("prompt no_self_ref makes no self-prediction that could be reused; take solve='each'")
        if votes < 1 or (votes > 1 and (solve == "each" or temperature <= 0)):
            raise ValueError("votes above 1 need solve='first' or 'alone' and a temperature above 0: greedy samples are equal")
        self.writer = judges.backend(
            path or model, base_url, batch_size, concurrency=batch_size, analysis_tokens=max_new_tokens,
            temperature=temperature, trained_with={"prompt": prompt, "video_input": "frames"},
        )  # fmt: skip
        self.model, self.prompt, self.solve, self.votes = str(path or model), prompt, solve, votes
        self.temperature, self.seed, self.batch_size, self.keep = temperature, seed, batch_size, keep
        self.predictions, self.made, self.spent, self.unsolved = {}, {}, Tokens(), 0

    def judge(self, question, response_1, response_2, frames=None, options=None, order="12"):
        """The Judgement of one pair; order "21" shows response_2 first. frames: PIL images in time order."""
        item = {"question": question, "response_1": response_1, "response_2": response_2, "frames": frames}
        return self.judge_many([item | {"options": options, "order": order}])[0]

    def prefer(self, question, response_1, response_2, frames=None, options=None):
        """p(response_1 is better), the mean of both orders; None unless both can be read (one alone would favour a place)."""
        item = {"question": question, "response_1": response_1, "response_2": response_2, "frames": frames, "options": options}
        read = [judgement.p_first for judgement in self.judge_many([item | {"order": order} for order in ("12", "21")])]
        return None if None in read else sum(read) / 2

    def compare_many(self, question, candidates, frames=None, options=None):
        """compare(pairs) for ppt's tournaments: p(a, shown first, beats b) for each (a, b), indices of `candidates`; None
        where unreadable. The Judgements asked for so far stand in compare.judgements."""
        item = {"question": question, "frames": frames, "options": options}

        def compare(pairs):
            texts = [{"response_1": candidates[a], "response_2": candidates[b]} for a, b in pairs]
            made = self.judge_many([item | two for two in texts])
            compare.judgements += made
            return [judgement.p_first for judgement in made]

        compare.judgements = []
        return compare

    def solve_once(self, question, frames=None, options=None, pair=None):
        """The self-prediction's text, made once and put in front of every later judgement of the question, or None where
        none can be read. solve="first" makes it in a judgement of `pair`, (response_1, response_2)."""
        if self.solve == "each":
            raise ValueError("solve is 'each': every judgement solves for itself")
        if self.solve == "first" and pair is None:
            raise ValueError("solve is 'first': give the pair whose judgement solves the question")
        item = {"question": question, "frames": frames, "options": options}
        item |= dict(zip(("response_1", "response_2"), pair or ("", "")))
        if self._call(item).group not in self.predictions:
            self.solve_many([item])
        return self.predictions.get(self._call(item).group)

    def solve_many(self, items):
        """Solve these questions now; for each the self-prediction (None: none can be read), or Missing where a server failed."""
        calls = [self._call(item, f"item {place}") for place, item in enumerate(items)]
        self._solve(items, calls)
        self._forget()
        return [self.predictions.get(call.group, Missing("no reply to the question")) for call in calls]

    def take_solution(self, item, solution):
        """Put a self-prediction that was made before in front of the judgements of the item's question, if it has none yet."""
        self.predictions.setdefault(self._call(item).group, solution)

    def _forget(self):
        if not self.keep:
            self.made.clear()

    def judge_many(self, items):
        """One Judgement per item, batched over questions: dicts with question, response_1, response_2, and optionally
        frames (PIL images), options, order, id, answer, preference (the last two only to say what is right)."""
        calls = [self._call(item, f"item {place}") for place, item in enumerate(items)]
        groups = list(dict.fromkeys(call.group for call in calls))
        judgements = [None] * len(items)
        bar = tqdm(total=len(items), desc="judging", unit="judgement", disable=len(items) <= 2 * self.batch_size)
        leaders = []
        for start in range(0, len(groups), self.batch_size):  # so many questions' caches are at hand at once
            here = set(groups[start : start + self.batch_size])
            places = [place for place, call in enumerate(calls) if call.group in here]
            if self.solve != "each":
                new = {calls[p].group: p for p in reversed(places) if calls[p].group not in self.predictions}
                leaders = sorted(new.values())
                if self.solve == "alone" or self.votes > 1:
                    self._solve([items[p] for p in leaders], [calls[p] for p in leaders])
                else:
                    self._judge(leaders, items, calls, judgements)
                    for p in leaders:
                        if part := own_part(judgements[p].text):
                            self.predictions[calls[p].group] = part
            self._judge([p for p in places if judgements[p] is None], items, calls, judgements)
            for p in leaders:
                part = own_part(judgements[p].text)
                judgements[p] = replace(judgements[p], solves=bool(part) and self.predictions.get(calls[p].group) == part)
            bar.update(len(places))
        bar.close()
        self._forget()
        return judgements

    def _call(self, item, where="the item"):
        """A judgement's call, without a self-prediction; raises ValueError on an item that cannot be judged."""
        for name in ("question", "response_1", "response_2"):
            if not isinstance(item.get(name), str):
                raise ValueError(f"{where}: field '{name}' must be a text, got {item.get(name)!r}")
        frames, options, order = tuple(item.get("frames") or ()), item.get("options"), item.get("order", "12")
        if order not in ("12", "21"):
            raise ValueError(f"{where}: field 'order' must be '12' or '21', got {order!r}")
        if not all(hasattr(frame, "tobytes") for frame in frames):
            raise ValueError(f"{where}: field 'frames' must hold PIL images; data.open_frames(record) opens a record's")
        shas = tuple(map(image_sha, frames))
        shown = [item["response_" + number] for number in order]
        messages = prompts.critic_prompt(item["question"], *shown, options, len(frames), self.prompt)
        seed = self._seed(item.get("id"), json_sha(messages, shas))
        shared = prompts.question_text(item["question"], options)  # options in another order are another prompt
        return Call(messages, (), None, frames, shas, json_sha(shared, shas, self.prompt), seed)

    def _seed(self, *parts):
        return int(json_sha(self.seed, *parts), 16) % 2**31 if self.temperature > 0 else None

    def _solve(self, items, calls):
        """Make the self-predictions of these questions, by `votes` samples each; calls: those of a judgement of each."""
        samples = []
        for item, call in zip(items, calls):
            if self.solve == "alone":
                messages = prompts.question_prompt(item["question"], item.get("options"), len(call.images))
                call = replace(call, messages=messages, group=call.group + " alone")
            else:
                call = replace(call, tags=(CLOSE,))
            samples += [replace(call, seed=self._seed(call.group, "vote", k)) for k in range(self.votes)]
        replies = [reply for reply, _ in self._run(samples)]
        for place, (item, call) in enumerate(zip(items, calls)):
            mine = replies[place * self.votes : (place + 1) * self.votes]
            texts = [reply.text for reply in mine if isinstance(reply, Reply)]
            if self.solve == "alone":
                parts = [in_critics_form(text, item.get("options")) for text in texts]
            else:
                parts = [own_part(text) for text in texts]
            if texts:  # else the server failed, and the next judgement asks again
                self.predictions[call.group] = majority(parts, item.get("options"))
                self.unsolved += self.predictions[call.group] is None

    def _judge(self, places, items, calls, judgements):
        """Fill in the judgements at these places, with the question's self-prediction where there is one."""
        asked = [replace(calls[place], analysis=self.predictions.get(calls[place].group)) for place in places]
        for place, call, (reply, repeated) in zip(places, asked, self._run(asked)):
            judgements[place] = self._judgement(items[place], call, reply, repeated)

    def _run(self, calls):
        """(Reply or Missing, was it there before?) of each call; what was made once is never made again."""
        names = [json_sha(call.messages, call.image_shas, call.analysis, call.seed, call.tags) for call in calls]
        new = {name: place for place, name in reversed(list(enumerate(names))) if name not in self.made}
        places, failed = sorted(new.values()), {}
        for i, reply in self.writer.run([calls[place] for place in places]):
            self.spent += reply.tokens
            (self.made if isinstance(reply, Reply) else failed)[names[places[i]]] = reply
        return [(self.made.get(name) or failed[name], new.get(name) != place) for place, name in enumerate(names)]

    def _judgement(self, item, call, reply, repeated):
        """The record of a judgement; what the shown order said is turned back to the record's."""
        missing = reply.reason if isinstance(reply, Missing) else None
        text = "" if missing else (call.analysis or "") + reply.text
        critique, options, order = rewards.parse_critique(text), item.get("options"), item.get("order", "12")
        verdict, p = (int(order[critique.verdict - 1]) if critique.verdict else None), None
        place = verdict_place(text)
        if place and place[1] == critique.verdict and reply.readings[0] is not None:  # else the wording is not "Response 1"
            p = reply.readings[0] if order == "12" else 1 - reply.readings[0]
        right = None
        if item.get("answer") is not None and self.prompt != "no_self_ref" and not missing:
            right = rewards.answers_match(critique.prediction, item["answer"], options)
        return Judgement(
            id=item.get("id") or json_sha(call.messages, call.image_shas)[:12], order=order, text=text,
            prediction=critique.prediction, verdict=verdict, p_first=p, prediction_correct=right,
            verdict_correct=None if missing or item.get("preference") is None else verdict == item["preference"],
            prompt_tokens=reply.tokens.input, computed_prompt_tokens=0 if repeated else reply.tokens.input - reply.tokens.cached,
            completion_tokens=reply.tokens.output, seed=self.seed, model=self.model, prompt_sha=json_sha(call.messages)[:12],
            reused=call.analysis is not None, repeated=repeated, missing=missing,
        )  # fmt: skip


@dataclass
class CriticConfig:
    """The command line."""

    model: str = field(metadata={"help": "local folder (model or PEFT adapter), hub id, or the model's name on the server"})
    question: str = field(metadata={"help": "the question"})
    responses: list[Path] = field(metadata={"help": "two text files, one response each"})
    video: str | None = field(default=None, metadata={"help": "the clip"})
    frames: list[str] | None = field(default=None, metadata={"help": "or its frames, images in time order"})
    options: str | None = field(default=None, metadata={"help": 'JSON, {"A": "...", "B": "..."}'})
    base_url: str | None = field(default=None, metadata={"help": "of an OpenAI-compatible server"})
    prompt: Literal["self_ref", "no_self_ref", "no_criteria"] = field(
        default="self_ref", metadata={"help": "the critic's prompt"}
    )
    solve: Literal["each", "first", "alone"] = field(default="each", metadata={"help": "where its own answer comes from"})
    votes: int = field(default=1, metadata={"help": "samples of its own answer, the majority counts"})
    max_frames: int = field(default=8, metadata={"help": "frames taken of a video"})
    max_new_tokens: int = field(default=512, metadata={"help": "tokens a judgement may have; a 7B model needs 2048"})
    temperature: float = field(default=0.0, metadata={"help": "0 is greedy"})
    seed: int = field(default=0, metadata={"help": "seed of the sampling; without effect at temperature 0"})


def show(judgement):
    """A judgement as lines for the screen."""
    critique = rewards.parse_critique(judgement.text)
    p = "unreadable" if judgement.p_first is None else f"{judgement.p_first:.4f}"
    lines = [f"order {judgement.order}" + (f"  no reply: {judgement.missing}" if judgement.missing else "")]
    lines += [f"  own reasoning    {critique.pred_think}", f"  self-prediction  {judgement.prediction}"]
    lines += [f"  comparison       {critique.think}", f"  verdict          {judgement.verdict}", f"  p_first          {p}"]
    return "\n".join(lines + [f"  (unreadable: {judgement.text!r})"] * (judgement.verdict is None))


def judge_and_show(config):
    """Judge the pair of the command line in both orders, and print what the critic says."""
    try:
        options = rewards.read_options(json.loads(config.options)) if config.options else None
    except ValueError as error:  # a JSONDecodeError is one
        raise ValueError(f"--options: {error}") from error
    if len(config.responses) != 2:  # the parser takes any number
        raise ValueError(f"--responses takes two files, got {len(config.responses)}")
    texts = [path.read_text(encoding="utf-8").strip() for path in config.responses]
    frames = data.open_frames({"frames": config.frames, "video": config.video}, config.max_frames)
    where = {"base_url": config.base_url, "model": config.model} if config.base_url else {"path": config.model}
    names = ("prompt", "solve", "votes", "max_new_tokens", "temperature", "seed")
    critic = Critic(**where, **{name: getattr(config, name) for name in names})
    item = {"question": config.question, "response_1": texts[0], "response_2": texts[1], "frames": frames, "options": options}
    made = critic.judge_many([item | {"order": order} for order in ("12", "21")])
    print("\n".join(map(show, made)))
    read = [judgement.p_first for judgement in made]
    mean = "unreadable" if None in read else f"{sum(read) / 2:.4f}"
    spent = critic.spent
    print(f"p({config.responses[0].name} is better), mean of both orders: {mean}")
    print(f"tokens: prompt {spent.input}, computed {spent.input - spent.cached}, generated {spent.output}")


def critic_judge(config, known):
    """The judge of judging.play.played that this file is; p is its p_first. A row that `solves` made its question's solution."""
    where = {"base_url": config.base_url, "model": config.critic} if config.base_url else {"path": config.critic}
    settings = {name: getattr(config, name) for name in ("solve", "max_new_tokens", "batch_size", "seed")}
    critic = Critic(**where, **settings, keep=False)  # the calls file keeps what counts, and --same_text ask asks again

    def judge(asked):
        frames = {record["id"]: data.open_frames(record, config.max_frames) for record, _, _ in asked}
        items = [critic_item(record, a, b, frames[record["id"]]) for record, a, b in asked]
        for item, (record, _, _) in zip(items, asked):
            for row in known[record["id"]].values():
                if row.get("solves"):
                    critic.take_solution(item, row["solution"])
        alone = [tuple(pair) == ALONE for _, *pair in asked]
        solved = iter(solutions(critic, [item for item, solve in zip(items, alone) if solve]))
        judged = iter(critic.judge_many([item for item, solve in zip(items, alone) if not solve]))
        return [next(solved) if solve else critic_row(next(judged)) for solve in alone]

    return judge


def critic_item(record, a, b, frames):
    """The item of candidates a and b; without responses where the question is solved alone."""
    first, second = ("", "") if (a, b) == ALONE else texts_of(record, a, b)
    shared = {"id": record["id"], "question": record["question"], "options": record.get("options"), "frames": frames}
    return shared | {"response_1": first, "response_2": second}


def critic_row(judgement):
    """What the calls file keeps of a Judgement."""
    row = {"p": judgement.p_first, "verdict": judgement.verdict, "prediction": judgement.prediction}
    row |= {name: getattr(judgement, name) for name in ("missing", *COSTS[:3])}
    return row | ({"solves": True, "solution": own_part(judgement.text)} if judgement.solves else {})


def solutions(critic, items):
    """Rows of questions solved alone, in one batch; its tokens are charged to them in equal parts."""
    before, n = critic.spent, len(items)
    solved = critic.solve_many(items)
    spent = [getattr(critic.spent, name) - getattr(before, name) for name in ("input", "cached", "output")]
    rows = []
    for found in solved:
        failed = isinstance(found, Missing)
        row = {"p": None, "solves": True, "solution": None if failed else found, "missing": found.reason if failed else None}
        rows.append(row | dict(zip(COSTS, (spent[0] / n, (spent[0] - spent[1]) / n, spent[2] / n))))
    return rows


def main():
    judge_and_show(*command.parse(__doc__, CriticConfig))


if __name__ == "__main__":
    command.run(main)
