"""More than one process or GPU, as far as a CPU can show it: launch configurations, the SLURM script, LoRA and QLoRA recipes,
attention and vLLM options."""

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, patch_environment
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from transformers import AutoProcessor
from trl import ModelConfig

import train_stage1
import train_stage2
import trainer
from tests import tiny_critic
from training import checkpoints, launch

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "accelerate_configs"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
QUICK = ["--prompts_per_step", "2", "--num_generations", "2", "--max_steps", "2", "--max_completion_length", "8"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tiny_critic.make_files(tmp_path_factory.mktemp("files"))


def launched(*words):
    """The arguments of `accelerate launch` as it fills them in from the command line and the configuration."""
    return _validate_launch_command(launch_command_parser().parse_args([*map(str, words)]))[0]


# ------------------------------------------------------------------------------------------------ launch configurations

WANTED = {  # what accelerate must have read: machines, processes, and what shares the model out
    "one_gpu": {"num_machines": 1, "num_processes": 1, "multi_gpu": False, "mixed_precision": "bf16"},
    "eight_gpus_zero2": {"num_processes": 8, "use_deepspeed": True, "zero_stage": 2, "mixed_precision": "bf16"},
    "eight_gpus_zero3": {"num_processes": 8, "use_deepspeed": True, "zero_stage": 3, "zero3_save_16bit_model": True},
    "eight_gpus_fsdp2": {"num_processes": 8, "use_fsdp": True, "fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"},
    "two_nodes": {"num_machines": 2, "num_processes": 16, "zero_stage": 3, "deepspeed_multinode_launcher": "standard"},
    "two_cpu": {"num_processes": 2, "multi_gpu": True, "use_cpu": True, "mixed_precision": "no"},
}


def test_every_configuration_is_tested():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_accelerate_reads_a_configuration_and_knows_all_its_keys(name):
    """accelerate refuses an unknown key at the top, and ignores one inside deepspeed_config or fsdp_config."""
    file = CONFIGS / f"{name}.yaml"
    config, known = load_config_from_file(str(file)), vars(launch_command_parser().parse_args(["script.py"]))
    assert set(config.deepspeed_config) | set(config.fsdp_config) <= set(known)
    args = launched("--config_file", file, "train_stage1.py")
    assert {key: getattr(args, key) for key in WANTED[name]} == WANTED[name]


def test_fsdp2s_environment_makes_its_plugin():
    environment = prepare_multi_gpu_env(launched("--config_file", CONFIGS / "eight_gpus_fsdp2.yaml", "train_stage1.py"))
    with patch_environment(**{key: value for key, value in environment.items() if key.startswith("FSDP_")}):
        plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.activation_checkpointing) == (2, True, False)
    assert plugin.cpu_ram_efficient_loading and "FULL" in str(plugin.state_dict_type)


def test_two_cpu_processes_train_two_steps(files, tmp_path):
    command = [str(Path(sys.executable).with_name("accelerate")), "launch", "--config_file", str(CONFIGS / "two_cpu.yaml")]
    command += [str(ROOT / "train_stage1.py"), *QUICK, "--per_device_train_batch_size", "2", "--output_dir", str(tmp_path)]
    command += ["--model_name_or_path", str(files / "base"), "--dataset", str(files / "questions.jsonl")]
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "ACCELERATE_USE_CPU"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["processes"] == 2 and config["training"]["gradient_accumulation_steps"] == 1
    assert run.stdout.count("stage 1 starts from") == 1, "only the main process speaks"
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2


def test_a_checkpoint_of_fsdp_is_whole_with_its_own_optimizer_file(tmp_path):
    (tmp_path / "trainer_state.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert checkpoints.missing_from_checkpoint(tmp_path) == "optimizer.pt is absent or cut off"
    torch.save({"a": torch.zeros(3)}, tmp_path / "optimizer.bin")
    assert checkpoints.missing_from_checkpoint(tmp_path) is None
    (tmp_path / "optimizer.bin").write_bytes((tmp_path / "optimizer.bin").read_bytes()[:100])
    assert checkpoints.missing_from_checkpoint(tmp_path) == "optimizer.pt is absent or cut off"


# ---------------------------------------------------------------------------------------------------------------- SLURM


@pytest.fixture
def cluster(tmp_path):
    """Environment of a job on two nodes whose srun, scontrol and accelerate are stand-ins: they write what they are told."""
    programs = {
        "scontrol": 'echo "scontrol $*" >> "$LOG"; [ "$1" != show ] || printf "node-a\\nnode-b\\n"',
        "srun": 'shift 2; for node in 0 1; do SLURM_NODEID=$node "$@"; done',
        "accelerate": f'exec {sys.executable} -c \'import shlex, sys; print(shlex.join(sys.argv[1:]))\' "$@" >> "$LOG"',
    }
    for name, body in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    job = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_NNODES": "2"}
    job |= {"SLURM_CPUS_PER_TASK": "64"}
    return ENVIRONMENT | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}


@pytest.mark.parametrize("restarts", ["", "1"], ids=["first start", "back from the queue"])
def test_the_slurm_script_starts_a_launcher_on_each_node(cluster, restarts):
    script = str(CONFIGS / "two_nodes.slurm")
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    typed = ["train_stage2.py", "--config", "a folder/with 'quotes'.yaml"]
    environment = cluster | {"SLURM_RESTART_COUNT": restarts}
    run = subprocess.run(["bash", script, *typed], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    typed += ["--resume_from_checkpoint", "true"] if restarts else []
    lines = Path(cluster["LOG"]).read_text().splitlines()
    assert lines[0] == "scontrol show hostnames node-[a-b]"
    for rank, line in enumerate(lines[1:]):
        words = shlex.split(line)
        assert words[0] == "launch" and words[-len(typed) :] == typed
        words[words.index("--config_file") + 1] = str(ROOT / words[words.index("--config_file") + 1])
        args = launched(*words[1:])
        assert (args.machine_rank, args.num_machines, args.num_processes, args.main_process_ip) == (rank, 2, 16, "node-a")
        args.deepspeed_fields_from_accelerate_config = ""
        _, environment = prepare_deepspeed_cmd_env(args)  # as accelerate hands it to torch's launcher
        assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("2", "8", rank)
        assert args.rdzv_endpoint == f"node-a:{20000 + 123456 % 20000}" and args.rdzv_backend == "static"
        assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert len(lines) == 3
    header = Path(script).read_text()
    for line in ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue", "--signal=B:USR1@300"):
        assert f"#SBATCH {line}" in header


def test_the_slurm_script_requeues_when_its_time_is_nearly_up(cluster):
    srun = Path(cluster["PATH"].split(":")[0]) / "srun"
    srun.write_text("#!/usr/bin/env bash\nkill -USR1 $PPID; exec sleep 1\n")
    command = ["bash", str(CONFIGS / "two_nodes.slurm"), "train_stage1.py"]
    run = subprocess.run(command, env=cluster, capture_output=True, text=True)
    assert run.returncode != 0 and "goes back into the queue" in run.stdout
    assert Path(cluster["LOG"]).read_text().splitlines()[-1] == "scontrol requeue 123456"


def test_the_slurm_script_without_a_script_says_how_it_is_used(cluster):
    run = subprocess.run(["bash", str(CONFIGS / "two_nodes.slurm")], env=cluster, capture_output=True, text=True)
    assert run.returncode == 2 and "usage: sbatch" in run.stderr


# ------------------------------------------------------------------------------------------------------- LoRA and QLoRA

RECIPES = {
    "phycritic_7b_stage1_lora": (launch.DataArguments, {"max_steps": 80}),
    "phycritic_7b_stage2_lora": (train_stage2.ScriptArguments, {"max_steps": 300}),
    "phycritic_7b_stage2_qlora": (train_stage2.ScriptArguments, {"max_steps": 300, "load_in_4bit": True}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_for_adapters_is_read_and_its_guesses_are_marked(name):
    arguments, wanted = RECIPES[name]
    path = ROOT / "experiments" / f"{name}.yaml"
    _, args, model_args = launch.parse(arguments, argv=["--config", str(path)], embedded=None)
    assert model_args.use_peft and (model_args.lora_r, model_args.lora_dropout) == (16, 0.0)
    assert args.prompts_per_step == 128 and args.gradient_accumulation_steps == 1024 and args.beta == 0.01
    assert {key: getattr(args, key, getattr(model_args, key, None)) for key in wanted} == wanted
    values = yaml.safe_load(path.read_text())
    assert values["dtype"] == "bfloat16" and values["output_dir"] == f"runs/{name}"
    stated = ("alpha_sp", "alpha_crit", "alpha_form", "beta", "max_steps", "model_name_or_path", "prompt")
    plain = ("per_device_", "generation_", "bf16", "gradient_", "dataloader_", "seed", "output_dir", "logging_", "report_to")
    plain += ("log_", "num_completions", "save_")  # under a heading that says "ours"
    for line in path.read_text().splitlines():
        if line and not line.startswith(("#", *stated, *plain)):
            assert "# " in line, f"{line}: no word on where the value comes from"


@pytest.mark.parametrize("stage, script", [(1, train_stage1), (2, train_stage2)])
def test_a_lora_recipe_trains_two_steps_of_a_tiny_model(files, tmp_path, monkeypatch, capsys, stage, script):
    data = files / ("questions.jsonl" if stage == 1 else "pairs.jsonl")
    typed = ["--config", ROOT / "experiments" / f"phycritic_7b_stage{stage}_lora.yaml", "--dataset", data, *QUICK]
    typed += ["--model_name_or_path", files / "base", "--output_dir", tmp_path, "--dataloader_num_workers", 0, "--use_cpu", True]
    monkeypatch.setattr(sys, "argv", [f"train_stage{stage}.py", *map(str, typed)])
    script.main()
    adapter = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"], adapter["lora_dropout"]) == (16, 32, 0.0)
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2
    assert "attention: sdpa" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["load_in_4bit", "load_in_8bit"])
def test_quantized_weights_without_bitsandbytes_are_an_error_that_names_the_remedy(flag, monkeypatch):
    monkeypatch.setattr(launch, "is_bitsandbytes_available", lambda: False)
    with pytest.raises(ValueError, match="need bitsandbytes, which is not installed: pip install bitsandbytes"):
        launch.check_packages(SimpleNamespace(), ModelConfig(**{flag: True}))
    monkeypatch.setattr(launch, "is_bitsandbytes_available", lambda: True)
    launch.check_packages(SimpleNamespace(), ModelConfig(**{flag: True}))


def test_the_qlora_recipe_ends_at_start_where_bitsandbytes_is_missing(files, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "is_bitsandbytes_available", lambda: False)
    typed = ["--config", ROOT / "experiments/phycritic_7b_stage2_qlora.yaml", "--dataset", files / "pairs.jsonl", *QUICK]
    typed += ["--model_name_or_path", "no such model", "--output_dir", tmp_path]  # not looked for: the error comes first
    monkeypatch.setattr(sys, "argv", ["train_stage2.py", *map(str, typed)])
    with pytest.raises(ValueError, match="load_in_4bit and load_in_8bit need bitsandbytes"):
        train_stage2.main()


# ----------------------------------------------------------------------------------------------------- attention, vLLM


@pytest.mark.parametrize(
    "asked, bf16, dtype, accelerator, installed, want",
    [
        (None, True, "float32", True, True, "flash_attention_2"),  # bf16 autocast
        (None, False, "bfloat16", True, True, "flash_attention_2"),
        (None, False, "float16", True, True, "flash_attention_2"),
        (None, False, "float32", True, True, "sdpa"),  # flash-attn has no float32
        (None, True, "bfloat16", True, False, "sdpa"),
        (None, True, "bfloat16", False, True, "sdpa"),  # no accelerator
        (None, False, "auto", True, True, "sdpa"),  # not known before the model is loaded
        ("eager", True, "bfloat16", True, True, "eager"),
        ("flash_attention_2", False, "float32", False, False, "flash_attention_2"),  # as asked: transformers will object
    ],
)
def test_attention_follows_the_machine_unless_asked(asked, bf16, dtype, accelerator, installed, want, monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    monkeypatch.setattr(launch, "is_flash_attn_2_available", lambda: installed)
    monkeypatch.setattr(launch, "importable", lambda package: True)
    args = SimpleNamespace(bf16=bf16, fp16=False, use_cpu=False)
    assert launch.attention(args, ModelConfig(attn_implementation=asked, dtype=dtype)) == want
    said = capsys.readouterr().out
    assert said == "" if asked else f"attention: {want} (" in said


def test_a_flash_attn_that_cannot_be_imported_is_not_taken(tmp_path, monkeypatch):
    """One that was built for another torch is installed, and fails when it is imported."""
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(launch, "is_flash_attn_2_available", lambda: True)
    args = SimpleNamespace(bf16=True, fp16=False, use_cpu=False)
    assert not launch.importable("flash_attn") and launch.importable("json")
    assert launch.attention(args, ModelConfig()) == "sdpa"


def test_vllm_that_is_missing_is_an_error_that_names_its_requirements(monkeypatch):
    monkeypatch.setattr(launch, "is_vllm_available", lambda: False)
    with pytest.raises(ValueError, match="use_vllm needs vllm.*requirements-vllm.txt"):
        launch.check_packages(SimpleNamespace(use_vllm=True), ModelConfig())
    launch.check_packages(SimpleNamespace(use_vllm=False), ModelConfig())
    launch.check_packages(SimpleNamespace(), ModelConfig())  # train_dpo.py's arguments have no such option


class StandIn:
    """In vLLM's place: keeps how it was made and asked, writes fixed tokens with their log-probabilities."""

    made = []

    def __init__(self, model, accelerator, processing_class=None, **options):
        self.options, self.asked, self.synced = options, [], 0
        StandIn.made.append(self)

    def sync_weights(self):
        self.synced += 1

    def generate(self, prompts, images, num_generations, profiler=None):
        self.asked.append((prompts, images, num_generations))
        texts = [[40 + (3 * row + place) % 200 for place in range(5)] for row in range(len(prompts))]
        return prompts, texts, [[[-5.0] for _ in text] for text in texts], None


@pytest.mark.parametrize(
    "mode, options, arrives",
    [
        ("colocate", {"vllm_gpu_memory_utilization": 0.2}, {"gpu_memory_utilization": 0.2}),
        ("colocate", {"vllm_max_model_length": 4096}, {"max_model_length": 4096}),
        ("colocate", {"vllm_enable_sleep_mode": True}, {"enable_sleep_mode": True}),
        ("colocate", {"vllm_tensor_parallel_size": 1}, {"tensor_parallel_size": 1}),
    ],
)
def test_vllms_options_reach_it(mode, options, arrives, tmp_path, monkeypatch):
    made = vllm_trainer(tmp_path, monkeypatch, vllm_mode=mode, **options)[1]
    assert {key: made.options[key] for key in arrives} == arrives and made.options["mode"] == mode


def vllm_trainer(folder, monkeypatch, **options):
    """(a trainer of the tiny model with the stand-in, the stand-in)."""
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", StandIn)
    model = tiny_critic.make_model(folder / "model")
    args = tiny_critic.config(folder, use_vllm=True, beta=0.01, **options)
    grpo = trainer.CriticGRPOTrainer(
        model=model,
        reward_funcs=[lambda completion_ids, **kwargs: [float(sum(ids) % 7) for ids in completion_ids]],
        args=args,
        train_dataset=tiny_critic.make_dataset(folder, questions=8),
        processing_class=AutoProcessor.from_pretrained(model, padding_side="left"),
    )
    return grpo, StandIn.made[-1]


def test_a_step_on_vllms_completions_scores_them_from_shared_prompts(tmp_path, monkeypatch, capsys):
    options = {"vllm_server_base_url": "http://127.0.0.1:9", "vllm_group_port": 50000, "generation_rows": 2}
    off = {"vllm_importance_sampling_correction": False}  # TRL would ask the server how it makes its log-probabilities
    grpo, vllm = vllm_trainer(tmp_path, monkeypatch, vllm_mode="server", shared_prefix="on", **options, **off)
    assert (vllm.options["server_base_url"], vllm.options["group_port"]) == ("http://127.0.0.1:9", 50000)
    grpo.train()
    [(prompts, images, count)] = vllm.asked  # the whole batch at once, whatever generation_rows says
    assert len(prompts) == len(images) == 8 and count == 4 and all(len(row) == 1 for row in images) and vllm.synced == 1
    assert grpo.sharing and set(grpo.sharing.compared) == {"scoring", "training"}
    assert "shared_prefix on: prompts run once for all their completions in passes without gradients" in capsys.readouterr().out
    assert any("generation_rows does not apply to vLLM" in note for note in grpo.args.notes)
    assert grpo.state.log_history[0]["loss"] == grpo.state.log_history[0]["loss"] and grpo.state.global_step == 1


def test_vllms_log_probabilities_correct_the_loss_as_in_trl(tmp_path, monkeypatch):
    grpo, _ = vllm_trainer(tmp_path, monkeypatch, vllm_mode="colocate", shared_prefix="on")
    grpo.train()
    [entry] = [entry for entry in grpo.state.log_history if "loss" in entry]
    assert any(name.startswith("sampling/importance_sampling_ratio") for name in entry) and grpo.sharing


def test_the_supported_vllm_is_the_one_in_its_requirements():
    from importlib.metadata import requires

    [bounds] = [line for line in requires("trl") if line.startswith("vllm")]
    assert "<=0.31.0" in bounds and "vllm==0.31.0" in (ROOT / "requirements-vllm.txt").read_text()
    assert "requirements-vllm.txt" in (ROOT / "requirements-gpu.txt").read_text()
    pins = [line.split()[0] for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0].isalpha()]
    here = [line.split()[0] for line in (ROOT / "requirements-vllm.txt").read_text().splitlines() if line and line[0].isalpha()]
    own = {"vllm", "torch", "torchvision", "transformers", "requests"}
    assert {pin for pin in here if pin.split("=")[0] not in own} <= set(pins), "the same pins, but for what vllm decides"
