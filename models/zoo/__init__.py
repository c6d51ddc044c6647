"""The models that come with turbofno: equations, data, training and cards; the trained models are in `trained`."""

from pathlib import Path

TRAINED = Path(__file__).parent / "trained"
"""The model repository with the trained models."""
