"""Who answers evaluate.py's and build_pairs.py's prompts: a transformers model in this process, or a model on a server.
"""

from data import video_inputs
from judging import models
from judging.calls import Call, Missing
from judging.models import Completion, complete, load_model
from judging.server import ServerBackend


def open_judge(model, base_url, max_new_tokens, temperature, top_p=1.0, video_input="frames", trained_with=None):
    """answer(tasks, asked, images, seed) -> a Completion each, or what a call was missing, of a local model or a server.

    `trained_with`: settings beside `video_input` that a model trained here should have been trained with, else a warning.
    """
    if base_url:
        return served(model, base_url, max_new_tokens, temperature, top_p)
    path, (model, processor) = model, load_model(model)
    models.warn_of_other_training(path, video_input=video_input, **(trained_with or {}))
    if video_input == "native":
        video_inputs.check(processor)
        video_inputs.text_after_videos(model)
    return lambda tasks, asked, images, seed: complete(
        model, processor, asked, images, max_new_tokens, temperature, seed, top_p
    )


def served(model, base_url, max_new_tokens, temperature, top_p):
    """answer(tasks, asked, images, seed) -> a Completion each, or a Missing with its reason, of an OpenAI-compatible server."""
    settings = {"analysis_tokens": max_new_tokens, "temperature": temperature}
    settings |= {"extra_body": {"top_p": top_p}} if top_p < 1 else {}
    backend = ServerBackend(base_url, model, route="text", **settings)

    def answer(tasks, asked, images, seed):
        seeds = [(seed + place) % 2**31 if temperature > 0 else None for place in range(len(asked))]
        calls = [
            Call(prompt, (), None, tuple(shown), group=str(place), seed=own)
            for place, (prompt, shown, own) in enumerate(zip(asked, images, seeds))
        ]
        answers = [Missing("the server gave no reply")] * len(calls)
        for place, reply in backend.write(calls):
            failed = isinstance(reply, Missing)
            answers[place] = reply if failed else Completion(reply.text, reply.tokens.input, reply.tokens.output)
        return answers

    return answer
