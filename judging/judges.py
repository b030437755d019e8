"""Who writes: for a critic or a verifier (backend), and for evaluate.py's and build_pairs.py's prompts (open_judge).

Each is a transformers model in this process or a model on a server. judging.local and judging.models load torch, so they
are imported where a local model is asked for: a served judge needs none.
"""

import sys
from pathlib import Path

import yaml

from judging.calls import Call, Completion, Missing
from judging.server import ServerBackend


def backend(model, base_url=None, batch_size=8, concurrency=8, trained_with=None, **settings):
    """A ServerBackend or LocalBackend; settings: analysis_tokens, temperature.

    `trained_with`: settings that a model trained here should have been trained with, else a warning.
    """
    if base_url:
        return ServerBackend(base_url, model, concurrency=concurrency, **settings)
    from judging.local import LocalBackend

    made = LocalBackend.load(str(model), batch_size=batch_size, **settings)
    warn_of_other_training(model, **(trained_with or {}))
    return made


def open_judge(model, base_url, max_new_tokens, temperature, top_p=1.0, video_input="frames", trained_with=None):
    """answer(tasks, asked, images, seed) -> a Completion each, or what a call was missing, of a local model or a server.

    `trained_with`: settings beside `video_input` that a model trained here should have been trained with, else a warning.
    """
    if base_url:
        return served(model, base_url, max_new_tokens, temperature, top_p)
    from data import video_inputs
    from judging import models

    path, (model, processor) = model, models.load_model(model)
    warn_of_other_training(path, video_input=video_input, **(trained_with or {}))
    if video_input == "native":
        video_inputs.check(processor)
        video_inputs.text_after_videos(model)
    return lambda tasks, asked, images, seed: models.complete(
        model, processor, asked, images, max_new_tokens, temperature, seed, top_p
    )


def served(model, base_url, max_new_tokens, temperature, top_p):
    """answer(tasks, asked, images, seed) -> a Completion each, or a Missing with its reason, of an OpenAI-compatible server."""
    settings = {"analysis_tokens": max_new_tokens, "temperature": temperature}
    settings |= {"extra_body": {"top_p": top_p}} if top_p < 1 else {}
    writer = ServerBackend(base_url, model, route="text", **settings)

    def answer(tasks, asked, images, seed):
        seeds = [(seed + place) % 2**31 if temperature > 0 else None for place in range(len(asked))]
        calls = [
            Call(prompt, (), None, tuple(shown), group=str(place), seed=own)
            for place, (prompt, shown, own) in enumerate(zip(asked, images, seeds))
        ]
        answers = [Missing("the server gave no reply")] * len(calls)
        for place, reply in writer.write(calls):
            failed = isinstance(reply, Missing)
            answers[place] = reply if failed else Completion(reply.text, reply.tokens.input, reply.tokens.output)
        return answers

    return answer


def warn_of_other_training(path, **asked):
    """Say on stderr where train_*.py's config.yaml beside a model has another `prompt` or `video_input` than is asked for."""
    saved = Path(path) / "config.yaml"
    script = (yaml.safe_load(saved.read_text(encoding="utf-8")) or {}).get("script") or {} if saved.is_file() else {}
    for name, value in asked.items():
        if script.get(name, value) != value:
            print(f"{saved}: trained with {name} {script[name]}, now asked with {value}: expect other answers", file=sys.stderr)
