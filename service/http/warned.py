"""The warnings of an answer on their way out: counted, and as the header that carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.context import context_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import Request

    from models.config import ModelConfig
    from service.answer_warnings import AnswerWarning

WARNING = "X-Warning"
"""Header of an answer: its warnings, separated by semicolons."""


def counted(
    request: Request, config: ModelConfig, warnings: Iterable[AnswerWarning]
) -> tuple[str, ...]:
    """The texts of an answer's warnings, whose reasons are counted."""
    warnings = tuple(warnings)
    counter = context_of(request).metrics.prediction_warnings
    for reason in dict.fromkeys(one.reason for one in warnings):
        counter.labels(config.name, config.version, reason).inc()
    return tuple(one.text for one in warnings)


def warning_header(texts: tuple[str, ...]) -> dict[str, str]:
    """The header that carries them, or none."""
    return {WARNING: "; ".join(texts)} if texts else {}
