"""One loaded model: its configuration, totals and execution on its device."""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from turbofno.models.core.memory import activation_bytes
from turbofno.service.engine.out_of_memory import out_of_memory, release_frames
from turbofno.service.engine.runnable import Ran, SlabState
from turbofno.service.engine.totals import ModelTotals
from turbofno.service.errors import DeviceLost, NotDifferentiable
from turbofno.service.runtime.gradient import GradientMemory
from turbofno.service.runtime.judge import Judge
from turbofno.service.runtime.judgement import no_signals, unjudged
from turbofno.service.runtime.rollout_turn import Excess, run_turn
from turbofno.service.runtime.small_batches import SmallBatches
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turbofno.models.core.config import ModelConfig, Precision
    from turbofno.service.engine.interface import Fields
    from turbofno.service.engine.runnable import ModelOutput, State, Turn
    from turbofno.service.engine.vjp import VjpShapes
    from turbofno.service.runtime.device_pipeline import Pipeline
    from turbofno.service.runtime.forward import Forward
    from turbofno.service.runtime.slabs import SlabModel

logger = logging.getLogger(__name__)

WARM_UP_SECONDS = 10.0
"""Device time for one model after which no larger batch is tried."""


class ModelInstance:
    """A model ready to run. `start`, `free_memory` and the steps of `warm_up` are for the device thread only."""

    def __init__(
        self,
        config: ModelConfig,
        forward: Forward,
        pipeline: Pipeline,
        *,
        device: torch.device,
        asked: Precision,
        trust: bool = False,
        others: Callable[[], list[ModelInstance]] = list,
        slabs: SlabModel | None = None,
    ) -> None:
        """`asked` is the preferred precision; `others` returns all models on the device; `trust` enables trust signals.

        `slabs` runs fields that are cut over several devices, with trust signals of their own. `device` is the first of these.
        """
        self.config = config
        self.totals = ModelTotals()
        self.ran = Ran("none")
        """Backend and precision used on the training grid in warm-up."""
        self.asked_precision = asked
        self._forward = forward
        self._pipeline = pipeline
        self._others = others
        self._slabs = slabs
        self._device = device
        self._excess = Excess(config.statistics, device)
        # There is nothing to judge by without either.
        judged = trust and (config.statistics or config.pde)
        self._judge = Judge(config, device) if judged else None
        signals = self._judge.signals if self._judge else no_signals
        chain = forward.chain
        sizes = config.architecture
        channels = max(sizes.in_channels, sizes.out_channels)
        self._small = (
            None
            if chain is None
            else SmallBatches(config.name, chain, signals, pipeline, channels=channels)
        )
        self._gradient_memory = GradientMemory(0.0, 0.0)
        self._no_gradient = ""

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def version(self) -> str:
        return self.config.version

    @property
    def field_bytes(self) -> int:
        """Bytes of a field on the training grid."""
        return 4 * self.config.architecture.in_channels * math.prod(self.config.grid.training)

    @property
    def device_bytes(self) -> int:
        """Device memory of its compiled chain and graphs."""
        return self._forward.device_bytes

    def start(
        self, parts: Sequence[Fields], output_buffers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        """Predict float32 [n, in_channels, *grid] -> [n, out_channels, *grid] in physical units; see Runnable."""
        if cut := self._cut(parts[0].shape[2:]):
            with self._pipeline.in_turn():
                output = cut.predict(parts, output_buffers)
            return lambda: output
        if self._small is not None and (started := self._small.start(parts)):
            return started
        return self._start_in_steps(parts, output_buffers)

    def start_vjp(self, parts: Sequence[Fields], shapes: VjpShapes) -> Callable[[], ModelOutput]:
        """Vector-Jacobian products of rows of these shapes; see Runnable."""
        return self._pipeline.start(parts, partial(self._forward.vjp, shapes=shapes))

    def gradient_bytes(self, shapes: VjpShapes) -> int:
        """Estimated memory for the gradient of one field, in addition to its row. Raises NotDifferentiable."""
        if self._no_gradient:
            raise NotDifferentiable(
                f"model {self.name!r} has no gradient: {self._no_gradient}; :predict works"
            )
        return self._gradient_memory.bytes(math.prod(shapes.input[1:]))

    def advance(
        self, states: Sequence[State], wanted: Sequence[Sequence[int]], *, steps: int
    ) -> Turn:
        """Advance rollouts by that many steps in one batch; see `run_turn`. On the device thread."""
        state = states[0]
        if cut := self._cut(state.grid if isinstance(state, SlabState) else state.shape[2:]):
            with self._pipeline.in_turn():
                return cut.advance(states, wanted, steps=steps)
        judge = self._judge and self._pipeline.judge_in_turn(self._judge)
        with self._pipeline.in_turn(), torch.inference_mode():
            return run_turn(
                lambda x: self._checked_forward(x)[0],
                states,
                wanted,
                steps=steps,
                excess=self._excess,
                judge=judge,
                device=self._device,
            )

    def free_memory(self) -> None:
        """Free the graphs of all models on the device, and PyTorch's cached device memory."""
        for instance in {self, *self._others()}:
            instance._forward.clear()
            if instance._small is not None:
                instance._small.clear()
            if instance._slabs is not None:
                instance._slabs.clear()
            if instance._judge is not None:
                instance._judge.clear()
        torch.cuda.empty_cache()

    def warm_up(self, largest: int, *, max_gradient_bytes: int) -> Iterator[Callable[[], bool]]:
        """Yield the steps of the warm-up, to be run in order on the device thread until one returns False.

        They run zeros on the training grid: one field, its gradient, then batches of each power of two and of `largest`
        fields, so that no request pays for set-up. Batches too large for the memory are skipped, since the pipeline
        splits them; so are those left after WARM_UP_SECONDS.
        """
        shape = (self.config.architecture.in_channels, *self.config.grid.training)
        spent = 0.0

        def timed(work: Callable[[], bool]) -> bool:
            nonlocal spent
            started = time.perf_counter()
            goes_on = work()
            spent += time.perf_counter() - started
            return goes_on

        yield partial(timed, partial(self._prepare, shape))
        yield partial(timed, partial(self._try_batch, (1, *shape)))
        yield partial(timed, partial(self._try_gradient, shape, max_gradient_bytes))
        if self._cut(shape[1:]):
            # Its fields run one after another.
            return
        size = 1
        while size < largest and spent < WARM_UP_SECONDS:
            size = min(2 * size, largest)
            yield partial(timed, partial(self._try_batch, (size, *shape)))

    def _prepare(self, shape: tuple[int, ...]) -> bool:
        if self._slabs is not None:
            self._slabs.load()
        self._forward.prepare(torch.Size(shape))
        return True

    def _try_batch(self, shape: tuple[int, ...]) -> bool:
        """True if the batch fits into memory. Raises errors of the model, also if a single field does not fit."""
        parts = [np.zeros(shape, np.float32)]
        try:
            if self._small is None or self._cut(shape[2:]):
                output = self.start(parts)()
            else:
                self._small.prepare(parts)
                # As rollouts run, and batches for which no graph is free.
                output = self._start_in_steps(parts)()
        except Exception as error:
            if shape[0] == 1 or not out_of_memory(error):
                raise
            release_frames(error)
            self.free_memory()
            logger.warning(
                "a batch of %d does not fit into memory for model %s", shape[0], self.name
            )
            return False
        self.ran = output.ran
        if self._slabs is not None and (whole := self._slabs.why_whole(shape[2:])):
            reasons = (self.ran.reason, f"on {self._device} alone: {whole}")
            self.ran = self.ran._replace(reason="; ".join(filter(None, reasons)))
        if output.release is not None:
            output.release()
        return True

    def _try_gradient(self, shape: tuple[int, ...], most: int) -> bool:
        """Record the gradient's memory, or why there is no gradient; predictions work without it."""
        if activation_bytes(self.config.architecture, shape[1:]) > most:
            self._no_gradient = (
                f"the gradient of one field on its training grid takes more than {most} bytes "
                f"({env_name('max_gradient_bytes')})"
            )
            return True
        try:
            with self._pipeline.in_turn():
                field = torch.zeros(1, *shape, device=self._device)
                self._gradient_memory = self._forward.measure_gradient(field)
        except NotDifferentiable as error:
            self._no_gradient = error.message
        except DeviceLost:
            raise
        except Exception as error:
            if out_of_memory(error):
                release_frames(error)
                self.free_memory()
                logger.warning("the gradient of model %s does not fit into memory now", self.name)
                return True
            self._no_gradient = f"it failed when the model was loaded ({type(error).__name__})"
            logger.warning("model %s has no gradient", self.name, exc_info=error)
        return True

    def _cut(self, grid: Sequence[int]) -> SlabModel | None:
        """What runs fields on this grid cut over several devices; None if they run whole."""
        slabs = self._slabs
        return None if slabs is None or slabs.why_whole(grid) else slabs

    def _start_in_steps(
        self, parts: Sequence[Fields], output_buffers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        return self._pipeline.start(
            parts, self._checked_forward, self._judge or unjudged, output_buffers
        )

    def _checked_forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Ran]:
        y, ran = self._forward(x)
        expected = (x.shape[0], self.config.architecture.out_channels)
        if y.shape[:2] != expected or y.dtype != torch.float32:
            raise RuntimeError(
                f"the model gave {y.dtype} {tuple(y.shape)}, expected float32 {expected} first"
            )
        return y, ran
