"""What a matrix of runs comes to: for each run and seed the stages, their folders, commands, steps and token budgets.

A matrix (experiments/tables.yaml) names runs; a scale (experiments/matrix/*.yaml) names models, scripts and evaluations.
Nothing is run here; experiments/run.py does that.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from data.files import content_sha, json_sha

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Stage:
    """One training: its folder (named by a hash of all that made it), its command, its YAML with the run's flags on top.

    `tokens`: at most so many in all, prompts and completions.
    """

    name: str
    folder: Path
    command: tuple
    config: dict
    tokens: int


@dataclass(frozen=True)
class Run:
    """A named run of one seed: stages, then evaluations, {name: (result file, command, tokens at most, completions)}.

    `id` is name, seed and a hash of all that decides the outcome.
    """

    id: str
    name: str
    seed: int
    start: str
    weights: str | None
    prompt: str
    stages: tuple
    evaluations: dict


def read_yaml(path):
    """The mapping that a YAML holds; raises ValueError naming the file on anything else."""
    content = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping, got {type(content).__name__}")
    return content


def read_matrix(path, scale=None):
    """(matrix, scale, {stage: its YAML}) of a matrix file; `scale` names another scale than the matrix does."""
    matrix = read_yaml(path)
    scale = read_yaml(scale or matrix["scale"])
    configs = {name: read_yaml(stage["config"]) for name, stage in scale["stages"].items()}
    for name, run in matrix["runs"].items():
        odd = set(run) - {"start", "stages", "table", "label", "paper"}
        unknown = [stage for stage, _ in map(stage_of, run["stages"]) if stage not in configs]
        if odd or unknown:
            fields = "fields are start, stages, table, label and paper"
            raise ValueError(f"{path}: run {name}: {sorted(odd) or unknown} is unknown; {fields}, stages {list(configs)}")
    return matrix, scale, configs


def stage_of(entry):
    """(stage, flags) of an entry of a run's list.

    >>> stage_of("stage1"), stage_of({"stage2": {"alpha_sp": 0.1}})
    (('stage1', {}), ('stage2', {'alpha_sp': 0.1}))
    """
    return (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))


def in_numbers(flags, scale, configs):
    """The flags with `max_steps: both` and `share` put in numbers: steps of both stages; the first records, `limit`."""
    flags, stage2 = dict(flags), configs["stage2"]
    if flags.get("max_steps") == "both":
        flags["max_steps"] = configs["stage1"]["max_steps"] + stage2["max_steps"]
    if "share" in flags:
        read = min(stage2["max_steps"] * stage2["prompts_per_step"], scale["pairs"])
        flags["limit"] = round(flags.pop("share") * read)
    return flags


def words(flags):
    """Flags as words of a command line.

    >>> words({"mixed": True, "alpha_sp": 0.1})
    ['--mixed', 'true', '--alpha_sp', '0.1']
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in flags.items()}
    return [word for name, text in texts.items() for word in (f"--{name}", text)]


def tokens_of(stage, config, scale):
    """Tokens of one training at most: every prompt at its mean length, every completion at its longest."""
    if "num_generations" in config:
        rows, completion = config["prompts_per_step"] * config["num_generations"], config["max_completion_length"]
    else:  # a verdict's handful of tokens is left out
        launcher = scale["launcher"]
        processes = int(launcher[launcher.index("--num_processes") + 1]) if "--num_processes" in launcher else 1
        rows, completion = config["per_device_train_batch_size"] * config.get("gradient_accumulation_steps", 1) * processes, 0
    return config["max_steps"] * rows * (scale["prompt_tokens"][stage] + completion)


def plan_stage(name, flags, model, seed, made_by, scale, configs, work):
    """The Stage that trains `model` further; `made_by` is the list of all that made the model, this stage added to it."""
    stage, flags = scale["stages"][name], in_numbers(flags, scale, configs)
    made_by += [name, configs[name], stage["arguments"], flags]
    label = "_".join([name, *(f"{flag}={value}" for flag, value in flags.items())])
    folder = work / f"seed{seed}" / f"{label}_{json_sha(*made_by)[:8]}"
    fixed = {"config": stage["config"], "model_name_or_path": model, "output_dir": folder, "seed": seed}
    fixed["resume_from_checkpoint"] = True
    command = (*scale["launcher"], stage["script"], *words(fixed | stage["arguments"] | flags))
    merged = configs[name] | stage["arguments"] | flags
    return Stage(name, folder, command, merged, tokens_of(name, merged, scale))


def plan_run(name, run, seed, scale, configs, work, weights):
    """The Run of a seed; `weights` are the hashes of the weights that runs start from (None for a hub id)."""
    start = run.get("start", "base")
    model, prompt, made_by, stages = scale["start"][start], "self_ref", [scale["start"][start], weights[start], seed], []
    for stage, flags in map(stage_of, run["stages"]):
        stages.append(plan_stage(stage, flags, model, seed, made_by, scale, configs, work))
        model = str(stages[-1].folder)
        prompt = stages[-1].config.get("prompt", prompt)
    folder = stages[-1].folder if stages else work / f"{start}_{json_sha(*made_by)[:8]}"
    evaluations = {}
    for evaluation, settings in scale["evaluations"].items():
        settings = settings | ({"prompt": prompt} if settings["mode"] == "judge" else {})
        out = folder / "eval" / f"{evaluation}_{json_sha(settings)[:8]}.json"
        completions = settings["limit"] * (2 if settings["mode"] == "judge" else 1)
        command = ("python", "evaluate.py", *words({"model": model, "out": out} | settings))
        tokens = completions * (scale["prompt_tokens"][settings["mode"]] + settings["max_new_tokens"])
        evaluations[evaluation] = (out, command, tokens, completions)
    key = json_sha(*made_by, scale["evaluations"], prompt)[:16]
    return Run(f"{name}/seed{seed}/{key}", name, seed, start, weights[start], prompt, tuple(stages), evaluations)


def plan(matrix, scale, configs, work, seeds, only, weights):
    """(the runs in order, notes about what is left out). What trains nothing has one run, as of seed 0."""
    unknown = set(only or ()) - set(matrix["runs"])
    if unknown:
        raise ValueError(f"--only {sorted(unknown)}: the matrix has {list(matrix['runs'])}")
    runs, notes = [], []
    for seed in seeds:
        for name, run in matrix["runs"].items():
            if (only and name not in only) or (not run["stages"] and seed != seeds[0]):
                continue
            if run.get("start", "base") not in weights:
                notes.append(f"{name} is left out: where it starts ({run['start']}) is not there")
                continue
            runs.append(plan_run(name, run, 0 if not run["stages"] else seed, scale, configs, work, weights))
    return runs, notes


def start_weights(scale):
    """{start: hash of its weights}, of those that are there; a base that is no folder here counts as a hub id (None)."""
    there = {name: content_sha(ROOT / path) for name, path in scale["start"].items() if (ROOT / path).is_dir()}
    return {"base": None} | there
