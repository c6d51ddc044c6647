"""Trust signals: estimates of a prediction's error from its input and output (docs/explanation/trust.md)."""
