"""Cells of any finished plan as training data: retrain or fine-tune, evaluate on held-out lists, compare sources."""
