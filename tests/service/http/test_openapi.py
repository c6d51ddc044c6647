"""The OpenAPI document lists the errors in the right form; control routes work as it says."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.service.http.serving import application, serving
from turbofno.service.http import operations
from turbofno.service.http.access_log import HEALTH


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app, _ = application()
    return app.openapi()


def test_fastapis_own_errors_are_not_in_the_document(document: dict[str, Any]) -> None:
    assert "ValidationError" not in str(document)


def test_errors_have_the_form_of_their_path(document: dict[str, Any]) -> None:
    checked = 0
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status >= "400" and path != "/readyz":
                    form = (
                        "application/json" if path.startswith("/v2") else "application/problem+json"
                    )
                    assert list(response["content"]) == [form], (path, status)
                    checked += 1
    assert checked > 50
    assert "Problem" in document["components"]["schemas"]


def test_generators_of_clients_read_the_whole_document(document: dict[str, Any]) -> None:
    """openapi-python-client leaves out operations with an array without items, openapi-generator stops at a reference with siblings."""
    arrays, references, rest = 0, 0, [document]
    while rest:
        part = rest.pop()
        if isinstance(part, dict) and part.get("type") == "array":
            assert "items" in part, part
            arrays += 1
        if isinstance(part, dict) and "$ref" in part:
            assert list(part) == ["$ref"], part
            references += 1
        rest += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    assert arrays > 20
    assert references > 100
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for content in operation["responses"]["200"].get("content", {}).values():
                assert content["schema"], path


def test_request_bodies_have_names_of_their_own(document: dict[str, Any]) -> None:
    """openapi-generator names a body after the first operation that has it: a rollout took a PredictVersionRequest."""
    named = {}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if content["schema"].get("format") != "binary":
                    named[path] = content["schema"]["$ref"].rpartition("/")[2]
    for model in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        assert named.pop(f"{model}:predict") == named.pop(f"{model}:rollout") == "FieldsRequest"
        assert named.pop(f"{model}:vjp") == "VjpRequest"
    assert named == {
        "/v1/models/{name}:solve": "FieldsRequest",
        "/v2/models/{model}/infer": "InferRequest",
        "/v2/models/{model}/versions/{version}/infer": "InferRequest",
        "/v2/repository/index": "RepositoryIndexRequest",
        "/v2/repository/models/{model}/load": "LoadRequest",
        "/v2/repository/models/{model}/unload": "UnloadRequest",
    }
    schemas = document["components"]["schemas"]
    for name, least in (("FieldsRequest", 1), ("VjpRequest", 2)):
        body = schemas[name]
        assert body["required"] == list(body["properties"]) == ["inputs"]
        assert body["additionalProperties"] is False
        assert body["properties"]["inputs"]["minProperties"] == least
    assert schemas["LoadRequest"]["properties"]["parameters"]["maxProperties"] == 0
    assert schemas["UnloadParameters"]["additionalProperties"] is False


def test_descriptions_of_models_have_the_members_of_their_schema(document: dict[str, Any]) -> None:
    async def main() -> Any:
        async with serving() as (client, _):
            return (await client.get("/v1/models/tiny-1d")).json()

    schemas = document["components"]["schemas"]
    description = asyncio.run(main())
    for name, answer in (
        ("ModelDescription", description),
        ("Signature", description["input"]),
        ("Channel", description["input"]["channels"][0]),
        ("GridSpec", description["grid"]),
    ):
        schema = schemas[name]
        assert schema["required"] == list(schema["properties"]) == list(answer), name
        assert "additionalProperties" not in schema, "later versions may add members"
    # Generators need the member by which they tell the residuals apart.
    assert "kind" in schemas["DarcyResidual"]["required"]


def test_generated_clients_can_send_a_key(document: dict[str, Any]) -> None:
    scheme = document["components"]["securitySchemes"]["key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert document["security"] == [{}, {"key": []}]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert path in HEALTH or "401" in operation["responses"], path


def test_all_parameters_are_described(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                assert parameter.get("description"), (path, parameter["name"])


@pytest.mark.parametrize("path", ["index", "models/{model}/load", "models/{model}/unload"])
def test_control_routes_declare_their_body_errors(document: dict[str, Any], path: str) -> None:
    declared = document["paths"][f"/v2/repository/{path}"]["post"]["responses"]
    assert {"400", "408", "413", "415"} <= set(declared)
    assert "422" not in declared


def test_no_path_is_hidden_by_another() -> None:
    every = [*operations._WITH_VERBS, *operations._OTHERS]
    for operation in every:
        for template in operation.paths:
            path = re.sub(r"{\w+}", "some", template)
            target = operations.target_of(path.encode())
            assert target.operations is not None
            assert target.operations[operation.method] is operation, template
            assert bool(target.model) == ("{name}" in template or "{model}" in template)
    assert len(every) > 20


def test_get_of_a_prediction_lists_the_allowed_method() -> None:
    async def main() -> None:
        async with serving() as (client, _):
            for version in ("", "/versions/1"):
                answer = await client.get(f"/v1/models/tiny-1d{version}:predict")
                assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
                assert "use POST" in answer.json()["detail"]

    asyncio.run(main())


def test_control_routes_answer_when_the_service_is_full() -> None:
    async def main() -> None:
        async with serving(model_control=True) as (client, engine):
            context = client._transport.app.state.context  # type: ignore[attr-defined]
            budget = context.admission.admit(None, model="tiny-1d", version="1")
            budget.hold_answer(context.settings.max_inflight_bytes)
            body = {"inputs": {"u0": [0.0] * 16}}
            refused = await client.post("/v1/models/tiny-1d:predict", json=body)
            assert refused.status_code == 429
            listed = await client.post("/v2/repository/index", json={})
            assert listed.status_code == 200
            for action in ("load", "unload"):
                path = f"/v2/repository/models/tiny-1d/{action}"
                assert (await client.post(path, json={})).status_code == 200
            budget.leave()
            assert engine.loaded == engine.unloaded == ["tiny-1d"]

    asyncio.run(main())


def test_control_body_over_its_limit_is_refused() -> None:
    async def main() -> None:
        async with serving() as (client, _):
            answer = await client.post("/v2/repository/index", content=b" " * 70_000)
            assert answer.status_code == 413
            assert "this route takes at most 65536" in answer.json()["error"]

    asyncio.run(main())
