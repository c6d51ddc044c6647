"""The models that come with turbofno: their equations, data, training and cards; what was trained is in `trained`."""

from pathlib import Path

TRAINED = Path(__file__).parent / "trained"
"""A repository of the trained models."""
