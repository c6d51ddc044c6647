"""Trust signals of answers: their meanings, status texts and headers."""

from __future__ import annotations

from turbofno.models.core.config import ModelConfig
from turbofno.models.core.statistics import INPUT_DISTANCE, RESIDUAL
from turbofno.service.engine.interface import Trust
from turbofno.service.http.call import Lines
from turbofno.service.settings import env_name

_MEANINGS = {
    "input_distance": "distance of the input from the training data; one in 100 training inputs is above 1",
    "residual": "how badly the output misses the model's PDE, about its relative L2 error",
}
OF_REQUEST = {
    name: f"{meaning}; the largest over the request's fields, where known"
    for name, meaning in _MEANINGS.items()
}
_HEADERS = {name: f"x-trust-{name.replace('_', '-')}: %.4g".encode() for name in _MEANINGS}
OF_FIELDS = "one value per field, where known: " + "; ".join(
    f"{name}: {meaning}" for name, meaning in _MEANINGS.items()
)
OF_FRAMES = "for each frame, one value per field: the largest of the steps since the previous frame"
TRUST_HEADER = "X-Trust"
NOT_COMPUTED = "trust signals could not be computed, or the field was cut over several devices"
WHY_NO_SIGNALS = "the reason why the answer has no trust signals; absent if it has"


def trust_status(config: ModelConfig, *, enabled: bool) -> str:
    """A text that names the trust signals of the model's answers, and says if its error was never measured.

    `enabled` is False if the server computes no signals.
    """
    signals = _signals(config)
    if not signals:
        status = "no trust signals"
    elif not enabled:
        status = f"trust signals are switched off ({env_name('trust')})"
    else:
        status = " and ".join(signals)
        if config.statistics is None or config.statistics.thresholds is None:
            status += " without thresholds"
    return status if config.evaluation else f"{status}, not evaluated"


def no_trust_reason(config: ModelConfig, *, enabled: bool) -> str:
    """The text of X-Trust if no answer of the model has signals; empty if answers may have them."""
    return "" if enabled and _signals(config) else trust_status(config, enabled=enabled)


def _signals(config: ModelConfig) -> list[str]:
    statistics, pde = config.statistics, config.pde
    known = {
        INPUT_DISTANCE: statistics is not None and statistics.distribution is not None,
        RESIDUAL: pde is not None and pde.residual is not None,
    }
    return [name for name, given in known.items() if given]


def trust_headers(trust: Trust) -> Lines:
    """The headers X-Trust-Input-Distance and X-Trust-Residual, to four digits."""
    return [_HEADERS[name] % max(values) for name, values in trust.items() if values]
