"""Make the embedded base model and the committed responses, from nothing.

    python -m physworld.make_base                  everything, about 30 minutes on two cores

1. teach    supervised, on clips of split "base": see and answer; find an answer among two responses; then solve, compare,
            decide, in all three prompts alike. The critic is taught to follow the answer that it wrote, right or wrong.
2. spoil    a few steps of bad habits, in all three prompts alike: a favourite answer (yes, red, wait ...), mostly to half of
            the kinds of question and now and then to the others, and the response that stands first. What is left is the
            base: above chance, far from perfect, and judging by place; now and then it follows its own answer,
            so that GRPO finds something to reinforce.
3. respond  checkpoints of different strength answer the questions of "pairs", "test" and "ood" at temperature 0.6; with
            written styles beside them, one right and one wrong response a question are chosen (physworld/pairs.py).

Writes physworld/tiny_vlm and physworld/pairs/*.jsonl, and the checkpoints (the taught, unspoiled one among them) to
runs/base. Checkpoints that are there are taken from there: a killed run carries on, and runs/base must go to begin anew.
"""

import json
import random
import re
import shutil
from multiprocessing import Pool
from pathlib import Path

from data import command


def read_arguments():
    """The command line."""
    parser = command.Parser(prog="python -m physworld.make_base", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("physworld/tiny_vlm"), help="where the base goes")
    parser.add_argument("--work", type=Path, default=Path("runs/base"), help="where the other checkpoints go")
    return parser.parse_args()


if __name__ == "__main__":
    read_arguments()

# torch: after --help
import torch
from tqdm import tqdm

import prompts
from judging.models import complete, load_model
from physworld import responses, tiny
from physworld.clips import answer_text, make_clip
from physworld.dataset import RESPONSES, SEED, SIZES
from physworld.pairs import choose_pairs

CLIPS, LESSONS = 16000, 0  # to teach with, and their seed
FAVOURITE = {  # what the spoiled model is fond of: yes, red, and doing nothing
    "leftmost": "red", "highest": "red", "gap": "yes", "tower": "yes", "fits": "yes", "which_fits": "red",
    "next_action": "wait", "placement": "yes", "slip": "stays", "what_to_do": "keep going",
}  # fmt: skip
STUBBORN = {"leftmost", "gap", "which_fits", "next_action", "placement"}  # kinds with a strong habit
HABIT = {True: 0.7, False: 0.3}  # share of a (stubborn, other) kind's spoiled lessons that end in the favourite answer
PLACE = 0.85  # share of the spoiled judgements that take the response shown first
PHASES = (  # name of the checkpoint, steps, learning rate, lessons a step: questions, matching, judgements; spoiled
    ("early", 300, 1.5e-3, (64, 0, 0), False),
    ("answers", 400, 1.5e-3, (32, 32, 16), False),
    ("taught", 600, 1.5e-3, (8, 24, 48), False),
    ("base", 110, 3e-4, (24, 16, 24), True),
)


def answers_of(clips):
    """kind -> the answers (in words) that occur."""
    kinds = {}
    for clip in clips:
        kinds.setdefault(clip.kind, set()).add(answer_text(clip))
    return {kind: sorted(answers) for kind, answers in kinds.items()}


def other_answer(rng, clip, answers):
    """A wrong answer in words."""
    return rng.choice([a for a in answers[clip.kind] if a != answer_text(clip)])


def question_lesson(rng, clip, answers, spoiled):
    """(messages, completion, where the loss begins in characters) of a question; same arguments as critic_lesson."""
    answer = habit_answer(rng, clip) if spoiled else answer_text(clip)
    messages = prompts.question_prompt(clip.question, clip.options, len(clip.frames))
    return messages, responses.solution(clip.facts, answer), 0


def habit_answer(rng, clip):
    """What the spoiled model says: its favourite, or the truth (always where the options lack the favourite)."""
    favourite = FAVOURITE[clip.kind]
    possible = not clip.options or favourite in clip.options.values()
    return favourite if possible and rng.random() < HABIT[clip.kind in STUBBORN] else answer_text(clip)


def matching_lesson(rng, clip, answers, spoiled):
    """A judgement without frames between two answers, half the time of any question, graded from the comparison on.

    With the few answers that a question allows, a small model guesses which response said which and never learns to
    look (600 steps of judgements alone: 46% of verdicts followed its own answer); here only reading helps. The other half
    are answers to this question: colours, which what is seen names too, so that the model learns where to look them up.
    """
    possible = answers[clip.kind] if rng.random() < 0.5 else sorted({answer for some in answers.values() for answer in some})
    said = rng.sample(possible, 2)
    verdict, variant = rng.choice((1, 2)), rng.choice(("self_ref", "no_criteria"))
    texts = [responses.candidate(rng, clip.facts, answer) for answer in said]
    completion = responses.critique(responses.caption(clip.facts), said[verdict - 1], *said, verdict)
    return prompts.critic_prompt(clip.question, *texts, clip.options, 0, variant), completion, completion.index("<think>")


def critic_lesson(rng, clip, answers, spoiled):
    """(messages, completion, where the loss begins) of a pair, in one of the three prompts.

    Taught: one time in four the self-prediction is wrong, carries no loss, and the verdict follows it all the same.
    """
    right, wrong = answer_text(clip), other_answer(rng, clip, answers)
    first_is_right = rng.random() < 0.5
    said = (right, wrong) if first_is_right else (wrong, right)
    texts = [responses.candidate(rng, clip.facts, answer) for answer in said]
    variant = rng.choice(list(prompts.VARIANTS))
    self_reference = variant != "no_self_ref"
    mistaken = self_reference and not spoiled and rng.random() < 0.25
    prediction = other_answer(rng, clip, answers) if mistaken else right
    if spoiled:
        prediction = habit_answer(rng, clip)
    by_place = spoiled and rng.random() < PLACE
    verdict = 1 if by_place else said.index(prediction) + 1 if prediction in said else rng.choice((1, 2))
    completion = responses.critique(responses.caption(clip.facts), prediction, *said, verdict, by_place, self_reference)
    messages = prompts.critic_prompt(clip.question, *texts, clip.options, len(clip.frames), variant)
    return messages, completion, completion.index("<think>") if mistaken else 0


def encode(processor, lessons, clips):
    """Model inputs with labels on the completions' tokens only: input_ids and labels (B, T), right padding."""
    texts = [processor.apply_chat_template(m, add_generation_prompt=True, tokenize=False) for m, _, _ in lessons]
    images = [frame for (m, _, _), clip in zip(lessons, clips) for frame in clip.frames if {"type": "image"} in m[1]["content"]]
    inputs = processor(
        text=[t + c + "<|im_end|>" for t, (_, c, _) in zip(texts, lessons)],
        images=images or None, padding=True, padding_side="right", return_tensors="pt",
    )
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, (_, completion, begin) in enumerate(lessons):
        graded = len(processor.tokenizer(completion[begin:] + "<|im_end|>")["input_ids"])
        end = int(inputs["attention_mask"][row].sum())
        labels[row, end - graded : end] = inputs["input_ids"][row, end - graded : end]
    inputs["labels"] = labels
    return inputs


def train(model, processor, clips, answers, phase):
    """The phase's steps of AdamW on lessons drawn from `clips`, one-cycle learning rate; each kind of lesson in a pass of its own."""
    name, steps, lr, counts, spoiled = phase
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    model.train()
    for step in (bar := tqdm(range(steps), desc=name, mininterval=10)):
        rng, losses = random.Random(f"{LESSONS}/{name}/{step}"), []
        for lesson, count in zip((question_lesson, matching_lesson, critic_lesson), counts):
            if count:
                chosen = rng.sample(clips, count)
                lessons = [lesson(rng, clip, answers, spoiled) for clip in chosen]
                loss = model(**encode(processor, lessons, chosen)).loss
                loss.backward()
                losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=" ".join(f"{loss:.3f}" for loss in losses))
    return model.eval()


def sample_candidates(model, processor, clips, source, temperature=0.6, batch=250):
    """id -> (text, source): one response a clip at temperature 0.6, seeded by the batch's first clip."""
    found = {}
    for start in tqdm(range(0, len(clips), batch), desc=f"responses of {source}", mininterval=10):
        chunk = clips[start : start + batch]
        asked = [prompts.question_prompt(c.question, c.options, len(c.frames)) for c in chunk]
        seed = random.Random(f"{source}/{chunk[0].id}").getrandbits(32)
        done = complete(model, processor, asked, [c.frames for c in chunk], 48, temperature, seed)
        found.update({clip.id: (completion.text, source) for clip, completion in zip(chunk, done)})
    return found


def written_candidates(clip, answers):
    """Two right and two wrong responses in written styles, seeded by the clip's id."""
    rng = random.Random(f"written/{clip.id}")
    said = [answer_text(clip)] * 2 + [other_answer(rng, clip, answers) for _ in range(2)]
    return [(responses.written_response(rng, answer), "written") for answer in said]


def make_pairs(processor, models, answers):
    """Sample, pair and write physworld/pairs/<split>.jsonl for the three splits that hold pairs."""
    for split in ("pairs", "test", "ood"):
        clips = make_clips(split, SIZES[split], SEED)
        sampled = [sample_candidates(model, processor, clips, source) for source, model in models.items()]
        candidates = {c.id: [s[c.id] for s in sampled] + written_candidates(c, answers) for c in clips}
        questions = [{"id": c.id, "kind": c.kind, "options": c.options, "answer": c.answer} for c in clips]
        pairs = choose_pairs(questions, candidates)
        RESPONSES.mkdir(exist_ok=True)
        lines = [json.dumps(pair) for pair in pairs]
        (RESPONSES / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{split}: {len(pairs)} pairs of {len(clips)} questions ({len(clips) - len(pairs)} without a right and a wrong response)")


def make_clips(split, n, seed):
    """The split's first n clips, made on all cores."""
    with Pool() as pool:
        return pool.starmap(make_clip, [(split, index, seed) for index in range(n)], chunksize=64)


def tokenizer_texts(clips, answers):
    """What the tokenizer is trained on: the suite's words, each with and without a space before it, and the template's."""
    words = {word for clip in clips for word in re.findall(r"\w+", prompts.question_text(clip.question, clip.options))}
    words |= {word for clip in clips for word in re.findall(r"\w+", responses.caption(clip.facts))}
    words |= {word for some in answers.values() for answer in some for word in answer.split()}
    words |= set(re.findall(r"\w+", " ".join(responses.FILLER + responses.LEADS)))
    words |= set("system user assistant Response 1 2 my answer better first".split())
    return [text for word in sorted(words) for text in (word, f" {word}")] * 2 + ["\n", ". ", ", ", ": ", "</"] * 2


def save(model, processor, folder):
    """Write a model and its processor, whole or not at all."""
    temporary = folder.with_name(folder.name + ".tmp")
    model.save_pretrained(temporary)
    processor.save_pretrained(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def main():
    args = read_arguments()
    torch.manual_seed(LESSONS)

    clips = make_clips("base", CLIPS, LESSONS)
    answers = answers_of(clips)
    processor = tiny.build_processor(tokenizer_texts(clips, answers))
    model = tiny.build_model(processor)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(processor.tokenizer)} tokens")

    for phase in PHASES:
        folder = args.work / phase[0]
        if folder.exists():
            print(f"{folder} is there: taken from it")
            model = load_model(folder)[0]
            continue
        train(model, processor, clips, answers, phase)
        save(model, processor, folder)
    save(model, processor, args.out)

    sources = {name: load_model(args.work / name)[0] for name, *_ in PHASES}
    make_pairs(processor, sources, answers)


if __name__ == "__main__":
    command.run(main)
