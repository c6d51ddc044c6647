"""The base of everything that config.json holds."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Unknown keys are errors, so that a misspelt setting cannot be silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
