"""How far a prediction can be trusted, judged from its input and output alone (docs/trust.md)."""
