"""One loaded model: its configuration, its torch module, and how to run it on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from service.pipeline.ticket import ModelOutput
from service.pipeline.totals import ModelTotals
from turbofno_ops.dispatch import last_backend

if TYPE_CHECKING:
    from models.checkpoint import LoadedModel
    from models.config import ModelConfig
    from service.pipeline.batcher import Policy
    from service.pipeline.engine import Fields


class ModelSlot:
    """A model ready to run. `run` and `warm_up` are for the device thread only."""

    precision = "fp32"

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        self.config: ModelConfig = loaded.config
        self.totals = ModelTotals()
        self.backend = ""
        self._module = loaded.module
        self._device = device

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def version(self) -> str:
        return self.config.version

    def run(self, fields: Fields) -> ModelOutput:
        """Predict float32 [n, in_channels, *grid] -> [n, out_channels, *grid], in physical units."""
        with torch.inference_mode():
            output = self._module(torch.from_numpy(fields).to(self._device)).cpu().numpy()
        expected = (len(fields), self.config.architecture.out_channels)
        if output.shape[:2] != expected or output.dtype != np.float32:
            raise RuntimeError(
                f"the module gave {output.dtype} {output.shape}, expected float32 {expected} first"
            )
        return ModelOutput(output, last_backend())

    def warm_up(self, policy: Policy) -> None:
        """Run the smallest and the largest batch, zeros on the training grid; notes the backend.

        No request then pays for first-time set-up.
        """
        shape = (self.config.architecture.in_channels, *self.config.grid.training)
        field = np.zeros((1, *shape), np.float32)
        for size in sorted({1, policy.limit(field.nbytes)}):
            self.backend = self.run(np.repeat(field, size, axis=0)).backend
