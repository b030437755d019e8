"""What train_*.py and trainer.py stand on: arguments, batches, shared prompts, checkpoints."""
