"""Python client of a turbofno server. It needs only httpx and numpy.

with Client("http://127.0.0.1:8080") as client:
    solution = client.predict("burgers-1d", initial_state)
"""

from ._answers import Frame, Gradient, Prediction
from ._autograd import jax_function, torch_function
from ._clients import AsyncClient, Client
from ._errors import (
    BadInput,
    BlowUp,
    ConnectionFailed,
    DeadlineExceeded,
    NotFound,
    Overloaded,
    PredictionWarning,
    ServerError,
    TurboFNOError,
)

__version__ = "0.2.0"

__all__ = [
    "AsyncClient",
    "BadInput",
    "BlowUp",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Frame",
    "Gradient",
    "NotFound",
    "Overloaded",
    "Prediction",
    "PredictionWarning",
    "ServerError",
    "TurboFNOError",
    "jax_function",
    "torch_function",
]
