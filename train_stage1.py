"""Stage 1, physical skill warm-up: GRPO on questions with the accuracy reward (PhyCritic, arXiv 2602.11124).

    reward = 1[the answer matches]      in \\boxed{} as the prompt asks, or else the last one that is stated

Smallest command (embedded default: a 1.8 M parameter model on simulated clips):
    python train_stage1.py
Two steps, to see that it runs:
    python train_stage1.py --max_steps 2 --output_dir /tmp/stage1
The paper's recipe (Qwen2.5-VL-7B-Instruct; needs 8 GPUs of 80 GB and the packages of requirements-gpu.txt):
    accelerate launch --config_file accelerate_configs/eight_gpus_zero3.yaml \\
        train_stage1.py --config experiments/phycritic_7b_stage1.yaml --dataset questions.jsonl

Time: the embedded default takes 60 steps of 1.6 s on one CPU core.
Departs from the paper: TRL in place of veRL; answers match by meaning (1/2 is 0.5), the paper's as texts; values that
the paper does not state carry a comment in the YAML.
Leaves in output_dir: the model and its processor, config.yaml, checkpoints, completions/, tensorboard logs.
"""

from data import command
from training import arguments

EMBEDDED = "experiments/physworld_stage1.yaml"


def main():
    arguments.help_first(__doc__, [arguments.DataArguments, arguments.OwnTraining], EMBEDDED)

    # torch and TRL: after --help
    import data
    import rewards
    import trainer
    from training import launch
    from training.checkpoints import log

    script_args, args, model_args = launch.parse(arguments.DataArguments, EMBEDDED)
    start = launch.starting_point(model_args.model_name_or_path)
    log(f"stage 1 starts from {start}")

    # Data
    path = launch.local_path(script_args.dataset or launch.physworld_file(args, "questions", "train"))
    records = data.load_records(path, limit=script_args.limit)
    dataset = data.training_dataset(records, max_frames=script_args.max_frames, video_input=script_args.video_input)

    # Model, training
    grpo = trainer.CriticGRPOTrainer(
        **launch.start_model(start, args, model_args, script_args.max_pixels),
        reward_funcs=[rewards.accuracy_reward],
        args=args,
        train_dataset=dataset,
    )
    launch.train_and_save(grpo, script_args, model_args)


if __name__ == "__main__":
    command.run(main)
