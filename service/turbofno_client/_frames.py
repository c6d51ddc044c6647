"""Parser of a rollout's stream of frames (format: docs/how-to/rollouts.md)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Generic

import httpx
import numpy as np

from ._answers import AnswerT, Frame
from ._arrays import Inputs
from ._errors import BlowUp, ConnectionFailed, ServerError

FRAMES = "application/vnd.turbofno.frames"

_PREFIX = struct.Struct("<II")


class FrameReader(Generic[AnswerT]):
    """Parses the bytes of one response to Frames in the layout of the input."""

    def __init__(self, inputs: Inputs) -> None:
        named = inputs if isinstance(inputs, Mapping) else {"": inputs}
        name, first = next(iter(named.items()))
        self._rank = np.ndim(first)
        # Named as predictions: "output" for "input", else each channel by its name.
        self._by_channel = name not in ("", "input")
        self._whole = {"": None, "input": "output"}.get(name)
        self._bytes = bytearray()
        self._start: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._step: int | None = None
        """That of the last frame."""

    def begin(self, response: httpx.Response) -> None:
        """Raise ServerError if the response is not a stream of frames."""
        if response.headers.get("content-type") != FRAMES:
            message = "the response is not a stream of frames: is this a turbofno server?"
            raise ServerError(message, response)

    def feed(self, chunk: bytes) -> Iterator[Frame[AnswerT]]:
        """The frames that this chunk completes."""
        self._bytes += chunk
        while (record := self._next_record()) is not None:
            event, payload = record
            self._last = event
            if event["event"] == "start":
                self._start = event
            elif event["event"] == "frame":
                self._step = event["step"]
                yield Frame(
                    event["step"],
                    self._laid_out(payload),
                    trust={name: max(found) for name, found in event.get("trust", {}).items()},
                    warnings=tuple(event.get("warnings", ())),
                )

    def finish(self, response: httpx.Response) -> None:
        """Raise an error unless the stream ended as it should."""
        kind = self._last.get("event")
        if kind == "end":
            return
        if kind != "failed":
            # Not that of the last event: progress has no fields to resume from.
            step = self._step
            where = "before its first frame" if step is None else f"after step {step}: resume there"
            raise ConnectionFailed(f"the stream of the rollout broke off {where}")
        detail, reason = str(self._last["detail"]), str(self._last["reason"])
        if reason in ("not_finite", "energy"):
            raise BlowUp(detail, response, step=self._last["step"], reason=reason)
        raise ServerError(detail, response)

    def _laid_out(self, payload: bytes) -> Any:
        shape: list[int] = self._start["shape"]
        fields = np.frombuffer(payload, "<f4").astype(np.float32, copy=False).reshape(shape)
        if not self._by_channel:
            whole = fields.reshape(shape[len(shape) - self._rank :])
            return whole if self._whole is None else {self._whole: whole}
        batched = self._rank == len(shape) - 1
        return {
            name: fields[:, i] if batched else fields[0, i]
            for i, name in enumerate(self._start["channels"])
        }

    def _next_record(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._bytes) < _PREFIX.size:
            return None
        text, payload = _PREFIX.unpack_from(self._bytes)
        begin = _PREFIX.size + text
        if len(self._bytes) < begin + payload:
            return None
        event = json.loads(self._bytes[_PREFIX.size : begin])
        content = bytes(self._bytes[begin : begin + payload])
        del self._bytes[: begin + payload]
        return event, content
