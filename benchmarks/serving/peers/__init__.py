"""One module for each server: the same model behind another server, set up at its best (docs/serving-comparison.md)."""
