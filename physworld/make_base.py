"""Make the embedded base model and the committed responses, from nothing.

    python -m physworld.make_base                  everything, about 35 minutes on two cores
    python -m physworld.make_base --clips 600 --steps 0.02 --out /tmp/base      a trial of the path

1. teach    supervised, on clips of split "base": see and answer; then solve, compare, decide, in all three prompts alike.
            The critic is taught to follow the answer that it wrote, right or wrong.
2. spoil    a few steps of bad habits, in all three prompts alike: the same favourite answer to most questions of a kind,
            and a preference for the longer response. What is left is the base: above chance, far from perfect, and
            judging by length; now and then it follows its own answer, so that GRPO finds something to reinforce.
3. respond  checkpoints of different strength answer the questions of "pairs", "test" and "ood" at temperature 0.6; with
            written styles beside them, one right and one wrong response a question are chosen (physworld/pairs.py).

Writes physworld/tiny_vlm and physworld/pairs/*.jsonl, and the taught, unspoiled model to runs/base/taught.
"""

import argparse
import json
import random
from multiprocessing import Pool
from pathlib import Path

import torch
from tqdm import tqdm

import evaluate
import prompts
from physworld import responses, tiny
from physworld.clips import answer_text, make_clip
from physworld.dataset import RESPONSES, SIZES
#from physworld.pairs import choose_pairs

HABIT = 0.6  # share of the spoiled lessons that end in the kind's favourite answer
LONGER = 0.75  # share of the spoiled judgements that go by length
BATCH = 64


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
    """(messages, completion, where the loss begins in characters) of a question."""
    answer = habit_answer(rng, clip, answers) if spoiled else answer_text(clip)
    messages = prompts.question_prompt(clip.question, clip.options, len(clip.frames))
    return messages, responses.solution(clip.facts, answer), 0


def habit_answer(rng, clip, answers):
    """What the spoiled model says: mostly the kind's first answer, else the truth."""
    return answers[clip.kind][0] if rng.random() < HABIT else answer_text(clip)


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
        prediction = habit_answer(rng, clip, answers)
    if spoiled and rng.random() < LONGER:
        lengths = [len(text.split()) for text in texts]
        verdict = 1 if lengths[0] > lengths[1] or (lengths[0] == lengths[1] and rng.random() < 0.5) else 2
        reason = responses.REASON_LENGTH
    else:
        verdict = said.index(prediction) + 1 if prediction in said else rng.choice((1, 2))
        reason = responses.REASON_ANSWER
    completion = responses.critique(responses.caption(clip.facts), prediction, *said, reason, verdict, self_reference)
    messages = prompts.critic_prompt(clip.question, *texts, clip.options, len(clip.frames), variant)
    return messages, completion, completion.index("<think>") if mistaken else 0


def encode(processor, lessons, clips):
    """Model inputs with labels on the completions' tokens only: input_ids and labels (B, T), right padding."""
    texts = [processor.apply_chat_template(m, add_generation_prompt=True, tokenize=False) for m, _, _ in lessons]
    images = [frame for clip in clips for frame in clip.frames]
    inputs = processor(
        text=[t + c + "<|im_end|>" for t, (_, c, _) in zip(texts, lessons)],
        images=images, padding=True, padding_side="right", return_tensors="pt",
    )
    labels = torch.full_like(inputs["input_ids"], -100)
    for row, (_, completion, begin) in enumerate(lessons):
        graded = len(processor.tokenizer(completion[begin:] + "<|im_end|>")["input_ids"])
        end = int(inputs["attention_mask"][row].sum())
        labels[row, end - graded : end] = inputs["input_ids"][row, end - graded : end]
    inputs["labels"] = labels
    return inputs


def train(model, processor, clips, answers, steps, lr, critic_share, spoiled, seed, name):
    """`steps` of AdamW on lessons drawn from `clips`, linear warm-up and cosine decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=max(steps, 2), pct_start=0.1)
    model.train()
    for step in (bar := tqdm(range(steps), desc=name, mininterval=10)):
        rng = random.Random(f"{seed}/{name}/{step}")
        chosen = rng.sample(clips, BATCH)
        lessons = [
            (critic_lesson if rng.random() < critic_share else question_lesson)(rng, clip, answers, spoiled) for clip in chosen
        ]
        loss = model(**encode(processor, lessons, chosen)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    return model.eval()
