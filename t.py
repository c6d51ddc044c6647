from __future__ import annotations
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, overload, Generic
import numpy as np
from numpy.typing import ArrayLike, NDArray
P = ParamSpec("P"); T = TypeVar("T"); S = TypeVar("S")
Steps = Generator[int, int, T]
class Calls:
    @overload
    def predict(self, model: str, fields: Mapping[str, ArrayLike], *, version: int | None = None) -> Steps[dict[str, NDArray[np.float32]]]: ...
    @overload
    def predict(self, model: str, fields: ArrayLike, *, version: int | None = None) -> Steps[NDArray[np.float32]]: ...
    def predict(self, model: str, fields: Any, *, version: int | None = None) -> Steps[Any]:
        yield 1
def blocking(f: Callable[Concatenate[Calls, P], Steps[T]]) -> Callable[Concatenate[Client, P], T]:
    raise NotImplementedError
def awaiting(f: Callable[Concatenate[Calls, P], Steps[T]]) -> Callable[Concatenate[AClient, P], Coroutine[Any, Any, T]]:
    raise NotImplementedError
class Client(Calls):
    predict2 = blocking(Calls.predict)
class AClient(Calls):
    predict2 = awaiting(Calls.predict)
c = Client()
reveal_type(c.predict2("m", [1.0]))
reveal_type(c.predict2("m", {"a": [1.0]}))
c.predict2("m", [1.0], verion=2)
