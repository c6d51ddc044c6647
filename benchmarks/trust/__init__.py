"""Evidence for the trust signals (docs/explanation/trust.md): how they rank errors, how often they warn, what they cost."""
