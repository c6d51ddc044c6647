"""The base class of all parts of config.json."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Rejects unknown keys, so that a misspelt one is not ignored; immutable; finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
