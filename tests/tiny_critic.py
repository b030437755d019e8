"""What the trainer's tests share: a random Qwen2.5-VL of some 150,000 parameters, a few records, recorded completions."""

import json
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoProcessor

import data
import prompts
from physworld import tiny
from trainer import CriticGRPOTrainer
from training.launch import CriticGRPOConfig

COLOURS = ["red", "blue", "green", "grey"]


def make_model(directory, layers=1):
    """Write a model and its processor to `directory`; returns the path as a string."""
    texts = [prompts.CRITIC_TASK, "The block is red. \\boxed{red} <pred_think> It is blue. </pred_think> <pred> blue </pred>"]
    processor = tiny.build_processor(texts, vocab_size=300)
    torch.manual_seed(0)
    model = tiny.build_model(processor, hidden=64, layers=layers, vision_hidden=32, vision_layers=1)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return str(directory)


def make_records(path, count, pair=False):
    """Write `count` questions (or pairs) with one frame each to the JSONL file `path`; returns the path as a string."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as lines:
        for i in range(count):
            right, wrong = COLOURS[i % 4], COLOURS[(i + 1) % 4]
            Image.new("RGB", (56, 56), right).save(path.parent / f"{right}.png")
            record = {"id": f"{'p' if pair else 'q'}{i}", "suite": "perception", "question": f"Which colour has block {i}?"}
            record |= {"options": None, "frames": [f"{right}.png"], "answer": right}
            if pair:
                answers = [right, wrong] if i % 2 else [wrong, right]
                record |= {f"response_{n}": f"It is {text}. \\boxed{{{text}}}" for n, text in enumerate(answers, 1)}
                record |= {"preference": 1 if i % 2 else 2, "source_1": "test", "source_2": "test"}
            lines.write(json.dumps(record) + "\n")
    return str(path)


def make_files(folder):
    """The model (base) and eight questions and pairs each (questions.jsonl, pairs.jsonl) in a folder; returns it."""
    make_model(folder / "base")
    make_records(folder / "questions.jsonl", 8)
    make_records(folder / "pairs.jsonl", 8, pair=True)
    return folder


def make_dataset(directory, questions=0, pairs=0):
    """A data set of so many questions and pairs."""
    records = []
    for pair, count in ((False, questions), (True, pairs)):
        if count:
            records += data.load_records(make_records(Path(directory) / f"{pair}.jsonl", count, pair), pair)
    return data.training_dataset(records)


def critique(prediction, verdict, form=True):
    """A critic's completion; without `form` only half of the format is there."""
    own = f"<pred_think> see </pred_think> <pred> {prediction} </pred> " if form else ""
    return f"{own}<think> compare </think> \\boxed{{Response {verdict}}}"


def config(directory, **changes):
    """A CriticGRPOConfig for a few quick steps on the CPU."""
    values = {"output_dir": str(directory), "report_to": "none", "gradient_checkpointing": False, "seed": 0, "max_steps": 1}
    values |= {"num_generations": 4, "prompts_per_step": 2, "per_device_train_batch_size": 8, "max_completion_length": 8}
    values |= {"beta": 0.0, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "save_strategy": "no", "logging_steps": 1}
    return CriticGRPOConfig(**(values | {"disable_tqdm": True, "use_cpu": True} | changes))


class Replay(CriticGRPOTrainer):
    """The trainer with recorded completions: `texts(id, k)` is the k-th completion of a row. Keeps what TRL makes of them."""

    def __init__(self, texts, model, args, **kwargs):
        processor = kwargs.pop("processing_class", None) or AutoProcessor.from_pretrained(model, padding_side="left")
        super().__init__(model=model, args=args, processing_class=processor, **kwargs)
        self.texts, self.outputs = texts, []

    def _generate_and_score_completions(self, inputs):
        first = self.accelerator.process_index * len(inputs)
        self.replayed = [self.texts(row["id"], (first + i) % self.num_generations) for i, row in enumerate(inputs)]
        output = super()._generate_and_score_completions(inputs)
        self.outputs.append([(row["id"], advantage) for row, advantage in zip(inputs, output["advantages"].tolist())])
        return output

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        encode = self._tokenizer.encode
        return [encode(text, add_special_tokens=False) + [self._tokenizer.eos_token_id] for text in self.replayed], None
