"""The continuous verifier: expected score over score tokens, mean over criteria and repeats, Bradley-Terry preference.

    from judging.server import ServerBackend          # or judging.local.LocalBackend
    from verifier import Verifier
    with Verifier(ServerBackend("http://localhost:8000/v1", "my-model"), "physical", cache="runs/verifier.jsonl") as verifier:
        result = verifier.compare(task, response_a, response_b, frames)      # .reward_a, .reward_b, .p, .records
        progress = verifier.track(task, steps)                               # one number in [0, 1] after each step

LLM-as-a-Verifier (arXiv 2607.05391), equation 3.1. Where it departs from the public package of that paper: spellings of
a letter are summed, not maximised; letters are asked for unconstrained and their missing mass is reported; a call
without a score is missing, never 0.5; the reply's form stands before the criterion, so that it belongs to the prefix
that a cache shares; a prompt is not asked again where its pair comes back in the other direction; progress is asked of
each prefix of the steps, so that no later step can be seen.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from tqdm import tqdm

import data
import prompts
from data.files import json_sha
from judging import judges
from judging.calls import Call, CallCache, Missing, Tokens, image_sha
from judging.play import texts_of
from judging.score_tokens import PAIRWISE, PROGRESS, NoScoreToken, expected_score
from ppt import preference

# ---------------------------------------------------------------------------------------------------------------------
# Criteria


class Criterion(NamedTuple):
    """What to judge by: a name, and the question in one paragraph."""

    name: str
    text: str


def load_criteria(source):
    """Criteria of a Markdown file, or of a folder of them in alphabetical order; a bare name is looked up in criteria/.

    A file is `# Name`, then the text. Raises ValueError where there is none, or one without name or text.

    >>> [criterion.name for criterion in load_criteria("physical")]
    ['Efficiency', 'Groundedness', 'Truthfulness', 'Validity']
    >>> load_criteria("agent/errors.md")[0].name
    'Errors'
    """
    places = [Path(source), Path(__file__).parent / "criteria" / source]
    found = [sorted(place.glob("*.md")) if place.is_dir() else [place] for place in places if place.exists()]
    files = next(filter(None, found), [])
    if not files:
        raise ValueError(f"no criteria at {source!r}: give a Markdown file or a folder of them, or 'physical' or 'agent'")
    criteria = []
    for file in files:
        title, _, text = file.read_text(encoding="utf-8").strip().partition("\n")
        if not title.startswith("# ") or not text.strip():
            raise ValueError(f"{file}: a criterion is a line '# Name' and a text below it")
        criteria.append(Criterion(title[2:].strip(), " ".join(text.split())))
    return criteria


# ---------------------------------------------------------------------------------------------------------------------
# The verifier


class NoValidCall(RuntimeError):
    """A comparison (or a step) none of whose calls gave a score."""


@dataclass(frozen=True)
class Comparison:
    """Rewards and preference over all valid calls (None where the verifier abstains), and one record a call."""

    reward_a: float | None
    reward_b: float | None
    p: float | None
    records: list = field(repr=False)

    @property
    def missing(self):
        """The records of the calls that gave no score."""
        return [record for record in self.records if record["missing"]]

    @property
    def why(self):
        """The reasons of the calls that gave no score."""
        return "; ".join(sorted({record["missing"] for record in self.missing}))

    @property
    def tokens(self):
        """What its calls cost."""
        return sum((Tokens(**record["tokens"]) for record in self.records), Tokens())


class Verifier:
    """Compares trajectories and tracks progress with a backend; every call goes through the cache.

    criteria     a name ("physical"), a file or folder, or a list of these and of Criterion
    granularity  2 to 20 letters
    repeats      calls per criterion; odd ones (the second, the fourth, ...) swap the slots. Without sampling, repeats in
                 the same order are one call. What has been asked is not asked again, so (b, a) after (a, b) costs nothing
                 with an even number of repeats: it would show the model the same prompts
    cache        JSONL file of calls, with which a killed run resumes
    min_mass     a distribution with less probability than this on the letters is an answer of another kind: missing
    abstain      True records a comparison without a valid call as None; False raises NoValidCall
    keep         False forgets replies and records once they are handed out, so that memory stays small
    """

    def __init__(
        self, backend, criteria, granularity=20, repeats=4, cache=None, seed=0, min_mass=0.01, abstain=False, progress=True,
        keep=True,
    ):  # fmt: skip
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
            raise ValueError(f"repeats must be a whole number of at least 1, got {repeats!r}")
        given = [criteria] if isinstance(criteria, (str, Path, Criterion)) else list(criteria)
        self.criteria = [c for one in given for c in ([one] if isinstance(one, Criterion) else load_criteria(one))]
        names = [criterion.name for criterion in self.criteria]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"criteria must be at least one, each with a name of its own, got {names}")
        self.pairwise, self.progress = PAIRWISE.at(granularity), PROGRESS.at(granularity)
        self.backend, self.repeats, self.seed, self.min_mass, self.abstain = backend, repeats, seed, min_mass, abstain
        self.cache, self.keep = CallCache(cache), keep
        self.records, self.tokens, self.counts, self.reasons = [], Tokens(), Counter(), Counter()
        self.bar = tqdm(total=0, unit="call", desc="verifier", disable=not progress)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End the progress bar and the cache's lock, and print what was asked, paid and missing."""
        self.bar.close()
        if self.cache.stream:
            self.cache.stream.close()
        if not self.bar.disable:
            print(self.report(), flush=True)

    def report(self):
        """What this verifier has done so far, in one line or more."""
        n, t = self.counts, self.tokens
        lines = [
            f"verifier: {sum(n.values())} calls, {n['paid']} paid, {n['cached']} from the cache, {n['missing']} missing; "
            f"tokens: input {t.input:,} (cached {t.cached:,}), output {t.output:,}"
        ]
        return "\n".join(lines + [f"  missing {count} x {reason}" for reason, count in self.reasons.most_common()])

    def compare(self, task, a, b, frames=None):
        """Comparison of trajectories a and b of a task; a stands first in even repeats."""
        return self.compare_many([(task, a, b, frames)])[0]

    def compare_many(self, comparisons):
        """One Comparison for each (task, a, b) or (task, a, b, frames), their calls made together.

        Equation 3.1: a reward is the mean over criteria and repeats, of the calls that gave a score.
        """
        comparisons = [(*one, None)[:4] for one in comparisons]
        plans = [self._pair_calls(*one) for one in comparisons]
        answers = iter(self._ask([step for plan in plans for step in plan]))
        results = [self._compared(one, plan, answers) for one, plan in zip(comparisons, plans)]
        self._remember(record for result in results for record in result.records)
        for result in results:
            if result.p is None and not self.abstain:
                raise NoValidCall(self._none_valid("comparison", result.missing))
        return results

    def track(self, task, steps, frames=None):
        """Progress in [0, 1] after each step, the mean over repeats (one call without sampling); no later step is ever seen.

        None after a step without a valid call where the verifier abstains.
        """
        steps = list(steps) if not isinstance(steps, str) else [steps]
        if not steps:
            raise ValueError("track needs at least one step")
        images = open_images(frames)
        plan = [one for number in range(1, len(steps) + 1) for one in self._step_calls(task, steps[:number], images)]
        records = []
        for (about, _), (scores, why, tokens) in zip(plan, self._ask(plan)):
            reward = scores[0][0] if scores else None
            records.append({"task": task, **about, "reward": reward, "tokens": asdict(tokens), "missing": why})
        self._remember(records)
        progress = []
        for start in range(0, len(plan), self.repeats):
            values = [record["reward"] for record in records[start : start + self.repeats] if not record["missing"]]
            if not values and not self.abstain:
                raise NoValidCall(self._none_valid(f"step {records[start]['step']}", records[start : start + self.repeats]))
            progress.append(math.fsum(values) / len(values) if values else None)
        return progress

    def _remember(self, records):
        if self.keep:
            self.records += records
        else:
            self.cache.replies.clear()

    def _none_valid(self, what, missing):
        reasons = Counter(record["missing"] for record in missing).most_common()
        text = "; ".join(f"{count} x {reason}" for reason, count in reasons)
        return f"no valid call of {len(missing)} for this {what}: {text}. (abstain=True records None and goes on)"

    def _pair_calls(self, task, a, b, frames):
        """(about, Call) for every criterion and repeat, a group (one order of the slots) after the other."""
        for name, text in (("task", task), ("a", a), ("b", b)):
            check_text(name, text)
        images, plan = open_images(frames), []
        scale, letters = self.pairwise, self.pairwise.letters
        form = prompts.VERIFIER_SCALE.format(first=letters[0], last=letters[-1], steps=len(letters))
        for order, slots in (("12", (a, b)), ("21", (b, a))):
            shown = dict(zip("ab", map(prompts.escape, slots)), task=prompts.escape(task))
            shared = prompts.VERIFIER_TASK.format(**shown) + form
            for criterion in self.criteria:
                text = shared + prompts.VERIFIER_CRITERION.format(name=criterion.name, text=criterion.text)
                for repeat in range(order == "21", self.repeats, 2):
                    messages = prompts.messages(prompts.VERIFIER_INSTRUCTIONS, len(images[0]), text)
                    about = {"criterion": criterion.name, "repeat": repeat, "order": order}
                    plan.append((about, self._call(messages, prompts.VERIFIER_TAGS, scale, images, shared, repeat // 2)))
        return plan

    def _step_calls(self, task, steps, images):
        """(about, Call) for every repeat after the last of `steps`."""
        for number, text in enumerate((task, *steps)):
            check_text(f"step {number}" if number else "task", text)
        letters, (shown, _) = self.progress.letters, images
        text = prompts.PROGRESS_TASK.format(task=prompts.escape(task))
        text += "".join(prompts.PROGRESS_STEP.format(number=n, text=prompts.escape(step)) for n, step in enumerate(steps, 1))
        text += prompts.PROGRESS_SCALE.format(first=letters[0], last=letters[-1], steps=len(letters))
        messages = prompts.messages(prompts.PROGRESS_INSTRUCTIONS, len(shown), text)
        return [
            ({"step": len(steps), "repeat": n}, self._call(messages, prompts.PROGRESS_TAGS, self.progress, images, task, n))
            for n in range(self.repeats)
        ]

    def _call(self, messages, tags, scale, images, shared, turn):
        """A Call; its seed, where the backend samples, depends on the verifier's seed, the prompt and its how many-th turn."""
        seed = int(json_sha(self.seed, turn, messages)[:7], 16) if self.backend.stochastic else None
        return Call(messages, tags, scale, *images, json_sha(shared, images[1]), seed)

    def _ask(self, plan):
        """(scores or None, why not, tokens that it cost now) for each (about, Call); asks what the cache lacks, once each."""
        keys = [json_sha(self.backend.identity, c.messages, c.image_shas, c.tags, c.scale.letters, c.seed) for _, c in plan]
        todo, failed = {}, {}
        for key, step in zip(keys, plan):
            if key not in self.cache.replies:
                todo.setdefault(key, step)
        new, abouts = list(todo), [about for about, _ in todo.values()]
        self.bar.total += len(new)
        self.bar.refresh()
        for place, reply in self.backend.run([call for _, call in todo.values()]):
            self.cache.add(new[place], reply, abouts[place])
            if isinstance(reply, Missing):
                failed[new[place]] = reply
            self.tokens += reply.tokens
            self.bar.set_postfix_str(f"{self.tokens.input:,} in, {self.tokens.output:,} out", refresh=False)
            self.bar.update()
        answers = []
        for key, (_, call) in zip(keys, plan):
            reply = failed.get(key) or self.cache.replies.get(key) or Missing("the backend gave no reply")
            fresh = todo.pop(key, None) is not None
            scores, why = self._scores(call, reply)
            self.counts["missing" if why else "paid" if fresh else "cached"] += 1
            self.reasons.update([why] if why else [])
            answers.append((scores, why, reply.tokens if fresh else Tokens()))
        return answers

    def _scores(self, call, reply):
        """([(value, mass, most probable letter) for each tag], None) of a reply, or (None, why it gives none)."""
        if isinstance(reply, Missing):
            return None, reply.reason
        try:
            scores = [(*expected_score(r, call.scale), call.scale.best_letter(r)) for r in reply.readings]
        except NoScoreToken as error:
            return None, str(error)
        for _, mass, _ in scores:
            if not self.min_mass <= mass <= 1.01:
                return None, f"the letters' probability is {mass:.2g}, not between {self.min_mass} and 1"
        return (scores, None) if len(scores) == len(call.tags) else (None, "not a reading for each tag")

    def _compared(self, comparison, plan, answers):
        """The Comparison of one plan; takes its answers from the iterator."""
        task, a, b, _ = comparison
        records = []
        for (about, _), (scores, why, tokens) in zip(plan, answers):
            of_a, of_b = (scores or [(None,) * 3] * 2)[:: 1 if about["order"] == "12" else -1]
            p = preference(of_a[0], of_b[0]) if scores else None
            said = {"task": task, "a": a, "b": b, "reward_a": of_a[0], "reward_b": of_b[0], "p": p, **about}
            said |= dict(zip(("mass_a", "mass_b", "letter_a", "letter_b"), (of_a[1], of_b[1], of_a[2], of_b[2])))
            records.append({**said, "tokens": asdict(tokens), "missing": why})
        valid = [record for record in records if not record["missing"]]
        if not valid:
            return Comparison(None, None, None, records)
        reward_a, reward_b = (math.fsum(record[name] for record in valid) / len(valid) for name in ("reward_a", "reward_b"))
        return Comparison(reward_a, reward_b, preference(reward_a, reward_b), records)


def check_text(name, text):
    """Raise ValueError unless `text` is a string with something in it."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name} must be a non-empty string, got {text!r}")


def open_images(frames):
    """(RGB PIL images, their hashes) of a list of images or paths (None: none); raises ValueError on anything else."""
    images = []
    if isinstance(frames, (str, Path, Image.Image)):
        raise ValueError(f"frames must be a list of images or paths, got {frames!r}")
    for frame in frames or []:
        if isinstance(frame, (str, Path)):
            try:
                with Image.open(frame) as image:
                    frame = image.convert("RGB")
            except OSError as error:
                raise ValueError(f"frame {frame}: cannot be opened as an image ({error})") from error
        if not isinstance(frame, Image.Image):
            raise ValueError(f"a frame must be a PIL image or a path, got {type(frame).__name__}")
        images.append(frame.convert("RGB"))
    return tuple(images), tuple(map(image_sha, images))


def verifier_judge(config):
    """The judge of judging.play.played that this file is; p is the Bradley-Terry preference of its rewards.

    An empty candidate is no trajectory that could be shown: it loses against any text without a call.
    """
    backend = judges.backend(config.verifier, config.base_url, config.batch_size, analysis_tokens=config.max_new_tokens)
    verifier = Verifier(
        backend, config.criteria, repeats=config.repeats, seed=config.seed, abstain=True, progress=False, keep=False
    )  # the calls file keeps what counts

    def judge(items):
        empty = [[not text.strip() for text in texts_of(*item)] for item in items]
        shown = [item for item, flags in zip(items, empty) if not any(flags)]
        frames = {record["id"]: data.open_frames(record, config.max_frames) for record, _, _ in shown}
        asked = (
            (prompts.question_text(r["question"], r.get("options")), *texts_of(r, a, b), frames[r["id"]]) for r, a, b in shown
        )
        results = iter(verifier.compare_many(asked))
        return [verifier_row(unshown(*flags) if any(flags) else next(results)) for flags in empty]

    return judge


def unshown(first_empty, second_empty):
    """The Comparison of two texts one of which (or both: a tie) is empty, without rewards or calls."""
    return Comparison(None, None, (1 + second_empty - first_empty) / 2, [])


def verifier_row(result):
    """What the calls file keeps of a Comparison."""
    spent, said = result.tokens, {name: getattr(result, name) for name in ("p", "reward_a", "reward_b")}
    said["missing"] = result.why if result.p is None else None
    tokens = {"prompt_tokens": spent.input, "computed_prompt_tokens": spent.input - spent.cached}
    return said | tokens | {"completion_tokens": spent.output}
