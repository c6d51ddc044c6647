"""Calls of tritonclient's HTTP clients except infer: required ones, and ones that a server may refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.oip.target import Target

CALLS: dict[str, Callable[[Any, Target], Any]] = {
    "is_server_live": lambda c, _: c.is_server_live(),
    "is_server_ready": lambda c, _: c.is_server_ready(),
    "is_model_ready": lambda c, t: c.is_model_ready(t.model),
    "is_model_ready, version": lambda c, t: c.is_model_ready(t.model, t.version),
    "get_server_metadata": lambda c, _: c.get_server_metadata(query_params={"a": [1, 2]}),
    "get_model_metadata": lambda c, t: c.get_model_metadata(t.model),
    "get_model_metadata, version": lambda c, t: c.get_model_metadata(t.model, t.version),
    "get_model_config": lambda c, t: c.get_model_config(t.model),
    "get_model_config, version": lambda c, t: c.get_model_config(t.model, t.version),
    "get_model_repository_index": lambda c, _: c.get_model_repository_index(),
    "get_inference_statistics": lambda c, _: c.get_inference_statistics(),
    "get_inference_statistics, model": lambda c, t: c.get_inference_statistics(t.model),
    "get_inference_statistics, version": lambda c, t: c.get_inference_statistics(
        t.model, t.version
    ),
    "get_trace_settings": lambda c, _: c.get_trace_settings(),
    "get_trace_settings, model": lambda c, t: c.get_trace_settings(t.model),
    "get_log_settings": lambda c, _: c.get_log_settings(),
    "get_system_shared_memory_status": lambda c, _: c.get_system_shared_memory_status(),
    "get_system_shared_memory_status, region": lambda c, _: c.get_system_shared_memory_status("r"),
    "unregister_system_shared_memory": lambda c, _: c.unregister_system_shared_memory(),
    "unregister_system_shared_memory, region": lambda c, _: c.unregister_system_shared_memory("r"),
    "get_cuda_shared_memory_status": lambda c, _: c.get_cuda_shared_memory_status(),
    "get_cuda_shared_memory_status, region": lambda c, _: c.get_cuda_shared_memory_status("r"),
    "unregister_cuda_shared_memory": lambda c, _: c.unregister_cuda_shared_memory(),
    "unregister_cuda_shared_memory, region": lambda c, _: c.unregister_cuda_shared_memory("r"),
}
"""Calls that every server must answer."""

DECLINABLE: dict[str, Callable[[Any, Target], Any]] = {
    "update_trace_settings": lambda c, _: c.update_trace_settings(settings={"trace_rate": "1"}),
    "update_trace_settings, model": lambda c, t: c.update_trace_settings(
        t.model, settings={"trace_rate": "1"}
    ),
    "update_log_settings": lambda c, _: c.update_log_settings({"log_verbose_level": 0}),
    "register_system_shared_memory": lambda c, _: c.register_system_shared_memory(
        "r", "/oip-conformance", 64
    ),
    "register_cuda_shared_memory": lambda c, _: c.register_cuda_shared_memory(
        "r", b"aGFuZGxl", 0, 64
    ),
    "load_model": lambda c, _: c.load_model("no-such-model"),
    "load_model, config": lambda c, t: c.load_model(t.model, config='{"name": "other"}'),
    "load_model, files": lambda c, t: c.load_model(t.model, config="{}", files={"file:1/m": b"x"}),
    "unload_model": lambda c, _: c.unload_model("no-such-model", unload_dependents=True),
    "get_model_metadata, unknown": lambda c, _: c.get_model_metadata("no-such-model"),
    "get_inference_statistics, unknown": lambda c, _: c.get_inference_statistics("no-such-model"),
}
"""Calls that a server may refuse, with an error that the client can read."""

EXPECTED: dict[str, Callable[[Any, Target], bool]] = {
    "is_server_live": lambda answer, _: answer is True,
    "is_server_ready": lambda answer, _: answer is True,
    "is_model_ready": lambda answer, _: answer is True,
    "is_model_ready, version": lambda answer, _: answer is True,
    "get_server_metadata": lambda answer, _: "binary_tensor_data" in answer["extensions"],
    "get_model_metadata": lambda answer, t: answer["inputs"][0]["name"] == t.input,
    "get_model_metadata, version": lambda answer, t: t.version in answer["versions"],
    "get_model_config": lambda answer, t: answer["input"][0]["name"] == t.input,
    "get_model_config, version": lambda answer, t: answer["name"] == t.model,
    "get_model_repository_index": lambda answer, t: t.model in [e["name"] for e in answer],
    "get_inference_statistics": lambda answer, t: (
        t.model in [e["name"] for e in answer["model_stats"]]
    ),
    "get_inference_statistics, model": lambda answer, t: (
        answer["model_stats"][0]["name"] == t.model
    ),
    "get_inference_statistics, version": lambda answer, t: (
        answer["model_stats"][0]["version"] == t.version
    ),
}
"""Checks of answers; for other calls it is enough that the client can read the answer."""


def assert_readable(error: Any) -> None:
    """Check that an exception of tritonclient has the server's status and message."""
    assert error.status() is not None, error
    assert int(str(error.status()).split()[0]) >= 400
    assert error.message()
    assert "while decoding the response" not in error.message()


def public_calls(client: type) -> set[str]:
    """Names of a client's methods that send a request."""
    skipped = {"close", "generate_request_body", "parse_response_body"}
    skipped |= {"plugin", "register_plugin", "unregister_plugin"}
    return {name for name in dir(client) if not name.startswith("_")} - skipped


def covered_calls() -> set[str]:
    """Names of the methods that the tables above call."""
    return {name.partition(",")[0] for name in (*CALLS, *DECLINABLE)}
