"""Requests and results of the client: tensors of other libraries, named arrays, all calls."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.draws import generator
from turbofno_client import BadInput, Client, ServerError

NPY, NPZ = "application/x-npy", "application/x-npz"


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class Recorder:
    """A server that records requests and always sends the same response."""

    def __init__(self, content: bytes, **headers: str) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = (content, headers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        content, headers = self._answer
        return httpx.Response(200, content=content, headers=headers)

    def client(self) -> Client:
        return Client("http://test", transport=httpx.MockTransport(self))

    @property
    def sent(self) -> Any:
        return np.load(io.BytesIO(self.requests[-1].content), allow_pickle=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.requires_grad_(),
        lambda x: x.bfloat16(),
        lambda x: x.bfloat16().requires_grad_(),
        lambda x: x.double().t().contiguous().t(),
        lambda x: torch.nn.Parameter(x),
        lambda x: (4 * x).int(),
        lambda x: torch.complex(x, -x).conj().imag,
        lambda x: torch.complex(x, -x).conj().imag.requires_grad_(),
    ],
)
def test_torch_tensors_are_accepted(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = change(torch.randn(3, 5))
    server = Recorder(npy(np.zeros((3, 5), "f4")))
    with server.client() as client:
        client.predict("m", tensor)
    np.testing.assert_array_equal(server.sent, tensor.detach().float().resolve_neg().numpy())
    assert server.sent.dtype == np.dtype("<f4")


@pytest.mark.parametrize(
    "fields",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64, requires_grad=True),
        torch.ones(2, device="meta"),
        [torch.ones(2, requires_grad=True)],
        torch.eye(2).to_sparse(),
        [[1.0, 2.0], [3.0]],
        np.array(["a"]),
    ],
)
def test_anything_but_an_array_of_real_numbers_is_refused(fields: Any) -> None:
    with Recorder(b"").client() as client:
        with pytest.raises(BadInput, match="real numbers"):
            client.predict("m", fields)
        with pytest.raises(BadInput, match="'u0' must be an array of real numbers"):
            client.predict("m", {"u0": fields})
        with pytest.raises(BadInput, match="the dict of fields is empty"):
            client.predict("m", {})


def test_masked_values_are_refused() -> None:
    fields = np.ma.masked_greater(np.array([[1.0, 1e9]]), 1e6)
    server = Recorder(npy(np.zeros((1, 2), "f4")))
    with server.client() as client:
        for given in (fields, {"u0": fields}, [fields, fields], {"u0": ([fields],)}):
            with pytest.raises(BadInput, match=r"without masked values.*\.filled\(value\)"):
                client.predict("m", given)
        assert not server.requests
        client.predict("m", fields.filled(0.0))
        np.testing.assert_array_equal(server.sent, [[1.0, 0.0]])
        # Nothing is masked.
        client.predict("m", np.ma.masked_greater(np.ones((1, 2)), 2.0))


class Labelled:
    """An array as xarray has it, with named axes."""

    def __init__(self, array: np.ndarray, dims: tuple[str, ...], **coordinates: Any) -> None:
        self.array, self.dims = array, dims
        self.dtype, self.ndim, self.shape = array.dtype, array.ndim, array.shape
        vars(self).update(coordinates)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array


class Quantity(np.ndarray):
    """An array with a unit, as astropy has it."""

    unit: str | None = "km"


class Pint:
    """An array with a unit, as pint has it."""

    def __init__(self, magnitude: np.ndarray, units: str) -> None:
        self._magnitude, self.units, self.dtype = magnitude, units, magnitude.dtype

    @property
    def magnitude(self) -> np.ndarray:
        return self._magnitude


class Lazy:
    """An array as Dask has it, whose conversion to numpy drops its mask."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def compute(self) -> np.ndarray:
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.array)


def test_masked_values_of_lazy_arrays_are_refused() -> None:
    masked = np.ma.masked_greater(np.array([1.0, 1e9]), 1e6)
    server = Recorder(npy(np.zeros(2, "f4")))
    with server.client() as client:
        # A variable of netCDF4 is one that converts itself to a masked array.
        for given in (Lazy(masked), Labelled(masked, ("x",))):
            with pytest.raises(BadInput, match="without masked values"):
                client.predict("m", given)  # type: ignore[call-overload]
        client.predict("m", Lazy(np.array([1.0, 2.0])))  # type: ignore[call-overload]
    np.testing.assert_array_equal(server.sent, [1.0, 2.0])


@pytest.mark.parametrize("name", ["dims", "dimensions"])
def test_named_axes_in_another_order_are_refused(name: str) -> None:
    cube = np.ones((2, 2, 2))
    server = Recorder(npy(np.zeros((2, 2, 2), "f4")))

    def labelled(*axes: str) -> Any:
        array = Labelled(cube, axes)
        del array.dims
        vars(array)[name] = axes
        return array

    mend = r"axes x, y, z in this order, got z, y, x: use fields\.transpose\(\.\.\., 'x', 'y', 'z'\), or fields\.to_numpy"
    with server.client() as client:
        for given in (labelled("z", "y", "x"), [labelled("z", "y", "x")]):
            with pytest.raises(BadInput, match=mend):
                client.predict("m", given)
        with pytest.raises(BadInput, match=r"'k' must have the axes x, y in this order, got y, x"):
            client.predict("m", {"k": labelled("time", "y", "x")})
        assert not server.requests
        for axes in (("x", "y", "z"), ("member", "x", "y"), ("time", "lat", "lon")):
            client.predict("m", labelled(*axes))
    assert len(server.requests) == 3


def test_channels_whose_axes_differ_in_order_are_refused() -> None:
    a = Labelled(np.ones((4, 4)), ("lat", "lon"))
    b = Labelled(np.ones((4, 4)), ("lon", "lat"))
    with Recorder(npz(u=np.zeros((4, 4)))).client() as client:
        mend = r"'b' has the axes lon, lat, 'a' has lat, lon, expected the same order in all"
        with pytest.raises(BadInput, match=mend):
            client.predict("m", {"a": a, "b": b})  # type: ignore[call-overload]
        with pytest.raises(BadInput, match="'cotangent' has the axes lon, lat"):
            client.vjp("m", a, b)  # type: ignore[call-overload]
        client.predict("m", {"a": a, "b": np.ones((4, 4))})  # type: ignore[call-overload]


def test_units_are_refused_as_numpy_drops_them() -> None:
    numbers = np.ones(2)
    server = Recorder(npy(np.zeros(2, "f4")))
    with server.client() as client:
        for given in (numbers.view(Quantity), Pint(numbers, "km"), [Pint(numbers, "km")]):
            with pytest.raises(BadInput, match=r"plain numbers .*, got the unit km: .*to_value"):
                client.predict("m", given)  # type: ignore[call-overload]
        assert not server.requests
        client.predict("m", Pint(numbers, "dimensionless"))  # type: ignore[call-overload]
        # Texts are for people, and a coordinate may have any name.
        names = ("magnitude", "compute", "detach")
        labelled = Labelled(numbers, ("x",), units="km", **dict.fromkeys(names, numbers))
        client.predict("m", labelled)  # type: ignore[call-overload]
        column = numbers.view(Quantity)
        column.unit = None
        client.predict("m", column)
    np.testing.assert_array_equal(server.sent, numbers)


def test_arguments_of_another_kind_are_refused() -> None:
    with Recorder(b"").client() as client:
        with pytest.raises(BadInput, match=r"output_grid must .* such as \(64, 64\), got 64"):
            client.predict("m", [1.0], output_grid=64)  # type: ignore[call-overload]
        with pytest.raises(BadInput, match="deadline must be a number of seconds, got nan"):
            client.predict("m", [1.0], deadline=float("nan"))


def test_named_inputs_give_named_outputs() -> None:
    answer = {"p": generator().random((2, 4), "f4"), "q": generator().random((2, 4), "f4")}
    server = Recorder(npz(**answer))
    # Names that are also keywords of numpy's functions.
    given = {"file": generator().random((2, 4)), "b": torch.ones(2, 4, dtype=torch.bfloat16)}
    with server.client() as client:
        found = client.predict("m", given, output_grid=[4])
    (request,) = server.requests
    assert request.headers["content-type"] == request.headers["accept"] == NPZ
    assert set(server.sent) == set(given)
    np.testing.assert_array_equal(server.sent["file"], given["file"].astype("f4"))
    assert set(found) == set(answer)
    for name, array in answer.items():
        np.testing.assert_array_equal(found[name], array)


def test_named_inputs_of_a_gradient() -> None:
    arrays = {"gradient.a": np.ones(4, "f4"), "gradient.b": np.zeros(4, "f4")}
    server = Recorder(npz(**arrays, **{"output.u": np.full(4, 2, "f4")}))
    given = {"a": np.ones(4), "b": np.ones(4)}
    with server.client() as client:
        found = client.vjp_detailed("m", given, {"u": np.ones(4)}, output=True)
        assert set(server.sent) == {"a", "b", "cotangent.u"}
        assert set(found.gradient) == {"a", "b"}
        np.testing.assert_array_equal(found.output["u"], np.full(4, 2))
        assert set(client.vjp("m", given, np.ones((1, 4)))) == {"a", "b"}
        assert set(server.sent) == {"a", "b", "cotangent"}
        with pytest.raises(ServerError, match=r"not an \.npz archive with gradient"):
            client.vjp("m", np.ones(4), np.ones(4))


def test_a_sample_and_its_solution_are_requested_by_seed() -> None:
    server = Recorder(npy(np.ones((1, 4), "f4")))
    with server.client() as client:
        client.sample("darcy 2d")
        client.sample("m", 7, grid=85, parameters={"tau": 3.5})
        client.solve("m", seed=7, grid=85, parameters={"tau": 3.5}, steps=2)
    default, drawn, solved = server.requests
    assert (default.method, default.url.raw_path) == ("GET", b"/v1/models/darcy%202d/sample?seed=0")
    assert dict(drawn.url.params) == {"seed": "7", "grid": "85", "tau": "3.5"}
    assert (solved.method, solved.url.path) == ("POST", "/v1/models/m:solve")
    assert dict(solved.url.params) == {"seed": "7", "grid": "85", "tau": "3.5", "steps": "2"}
    assert solved.content == b""
    assert "content-type" not in solved.headers


def test_arguments_of_a_sample_are_not_given_as_its_parameters() -> None:
    with Recorder(b"").client() as client, pytest.raises(BadInput, match="seed is an argument"):
        client.sample("m", 7, parameters={"seed": 3})


def test_a_sample_has_one_number_of_points_for_all_axes() -> None:
    with Recorder(b"").client() as client, pytest.raises(BadInput, match=r"one number .*\(8, 9\)"):
        client.sample("m", grid=(8, 9))  # type: ignore[arg-type]


def test_a_field_is_sent_to_the_solver() -> None:
    field = generator().random((5, 5), "f4")
    server = Recorder(npy(field))
    with server.client() as client:
        np.testing.assert_array_equal(client.solve("m", field), field)
    np.testing.assert_array_equal(server.sent, field)
    assert server.requests[0].url.query == b""
    assert server.requests[0].headers["content-type"] == "application/x-npy"


@pytest.mark.parametrize("given", [{}, {"fields": [1.0], "seed": 3}])
def test_solve_takes_either_a_field_or_a_seed(given: dict[str, Any]) -> None:
    with (
        Recorder(b"").client() as client,
        pytest.raises(BadInput, match="either a field or the seed"),
    ):
        client.solve("m", **given)


def test_a_card_is_returned_as_text() -> None:
    server = Recorder("# Darcy, ∇".encode(), **{"content-type": "text/markdown; charset=utf-8"})
    with server.client() as client:
        assert client.card("m") == "# Darcy, ∇"
    assert server.requests[0].url.path == "/v1/models/m/card"
