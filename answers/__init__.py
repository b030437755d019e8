"""What a completion answers and whether two answers are the same: pure reading of text, no model, no torch."""
