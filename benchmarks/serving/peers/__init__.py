"""The same model behind each other server, in its best configuration (docs/explanation/comparison.md)."""
