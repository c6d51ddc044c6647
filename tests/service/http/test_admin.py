"""Health, metrics and model descriptions over HTTP."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.service.http.asgi import serving
from tests.service.tiny import save_tiny, tiny_config

PNG = b"\x89PNG\r\n\x1a\nrest"


def test_ready_service_is_ready_and_lists_its_models(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    save_tiny(tmp_path, "tiny-2d", n_dim=2)

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            assert (await client.get("/healthz")).json() == {"live": True}
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (200, {"ready": True, "reasons": []})
            listed = (await client.get("/v1/models")).json()["models"]
            assert [(one["name"], one["state"]) for one in listed] == [
                ("tiny-1d", "READY"),
                ("tiny-2d", "READY"),
            ]
            assert listed[0]["description"] == tiny_config().description
            assert listed[0]["backend"] in {"gemm", "reference"}
            assert listed[0]["precision"] == listed[0]["asked_precision"] == "fp32"
            assert listed[0]["execution"] in {"replay", "module"}
            assert listed[0]["execution_reason"] == ""

    asyncio.run(main())


def test_description_has_the_full_signature(tmp_path: Path) -> None:
    save_tiny(tmp_path, "tiny-2d", n_dim=2)

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            found = (await client.get("/v1/models/tiny-2d")).json()
            config = tiny_config("tiny-2d", n_dim=2)
            assert found["input"]["shape"] == [-1, 1, -1, -1]
            assert found["output"]["shape"] == [-1, 2, -1, -1]
            names = [(one["name"], one["units"]) for one in found["output"]["channels"]]
            assert names == [("u", "1"), ("v", "m/s")]
            assert found["grid"] == config.grid.model_dump(mode="json")
            assert found["smallest_grid"] == [4, 6]
            assert found["predict"] == "/v1/models/tiny-2d:predict"

    asyncio.run(main())


def test_one_version_has_a_description_of_its_own(tmp_path: Path) -> None:
    save_tiny(tmp_path, version="2")
    save_tiny(tmp_path, version="3", n_dim=2)

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            older = (await client.get("/v1/models/tiny-1d/versions/2")).json()
            newest = (await client.get("/v1/models/tiny-1d")).json()
            assert [older["version"], newest["version"]] == ["2", "3"]
            assert [len(one["grid"]["training"]) for one in (older, newest)] == [1, 2]
            assert older["predict"] == "/v1/models/tiny-1d/versions/2:predict"
            assert older["card"] == newest["card"] == "/v1/models/tiny-1d/card"
            missing = await client.get("/v1/models/tiny-1d/versions/4")
            assert missing.status_code == 404
            assert "has no version '4'" in missing.json()["detail"]

    asyncio.run(main())


def test_broken_model_makes_the_service_unready_with_its_reason(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{}")

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            (reason,) = answer.json()["reasons"]
            assert reason.startswith("model bad version 1 is UNAVAILABLE: bad/config.json: name")
            assert str(tmp_path) not in answer.text
            assert (await client.get("/v1/models/tiny-1d")).status_code == 200
            assert (await client.get("/v1/models/bad")).status_code == 503

    asyncio.run(main())


def test_an_unloaded_model_is_no_reason_to_be_unready(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    save_tiny(tmp_path, "other")
    save_tiny(tmp_path, "bad")
    (tmp_path / "bad" / "model.safetensors").unlink()

    async def main() -> None:
        async with serving(tmp_path, model_control=True) as (client, _):
            for unloaded, reason in (
                ("other", "model bad version 1 is UNAVAILABLE: bad has no model.safetensors"),
                ("bad", None),
                ("tiny-1d", "no model is loaded"),
            ):
                await client.post(f"/v2/repository/models/{unloaded}/unload")
                reasons = (await client.get("/readyz")).json()["reasons"]
                assert reasons == ([] if reason is None else [reason])

    asyncio.run(main())


def test_draining_service_is_live_but_not_ready(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    async def main() -> None:
        async with serving(tmp_path) as (client, app):
            app.state.context.admission.start_draining()
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["reasons"]) == (503, ["shutting down"])
            assert (await client.get("/healthz")).status_code == 200

    asyncio.run(main())


def test_card_and_its_picture_are_served_and_nothing_else(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    folder = tmp_path / "tiny-1d"
    (folder / "card.md").write_text("# Tiny é\n![x](prediction.png)\n")
    (folder / "prediction.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(b"secret")

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            card = await client.get("/v1/models/tiny-1d/card")
            assert card.headers["content-type"] == "text/markdown; charset=utf-8"
            assert card.text == "# Tiny é\n![x](prediction.png)\n"
            picture = await client.get("/v1/models/tiny-1d/prediction.png")
            assert picture.headers["content-type"] == "image/png"
            assert picture.content == PNG
            for path in (
                "tiny-1d/other.png",
                "tiny-1d/..%2Fsecret.png",
                "tiny-1d/%2e%2e/secret.png",
                "tiny-1d/model.safetensors",
                "nope/card",
            ):
                answer = await client.get(f"/v1/models/{path}")
                assert answer.status_code in (400, 404), path
                assert b"secret" not in answer.content.replace(path.encode(), b"")[:6]

    asyncio.run(main())


def test_a_card_that_is_a_link_out_of_the_folder_is_not_shown(tmp_path: Path) -> None:
    async def main() -> None:
        repository = tmp_path / "models"
        save_tiny(repository)
        for name, text in (("secret.md", "secret"), ("models/shared.md", "shared")):
            (tmp_path / name).write_text(text)
        card = repository / "tiny-1d" / "card.md"
        async with serving(repository) as (client, _):
            card.symlink_to(tmp_path / "secret.md")
            answer = await client.get("/v1/models/tiny-1d/card")
            assert answer.status_code == 404
            assert "secret" not in answer.text
            card.unlink()
            # The layout of Kubernetes volumes.
            card.symlink_to("../shared.md")
            assert (await client.get("/v1/models/tiny-1d/card")).text == "shared"

    asyncio.run(main())


def test_a_card_is_not_found_while_the_repository_is_gone(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    save_tiny(repository)
    (repository / "tiny-1d" / "card.md").write_text("# Tiny")

    async def main() -> None:
        async with serving(repository) as (client, _):
            repository.rename(tmp_path / "away")
            assert (await client.get("/v1/models/tiny-1d/card")).status_code == 404
            (tmp_path / "away").rename(repository)
            assert (await client.get("/v1/models/tiny-1d/card")).status_code == 200

    asyncio.run(main())


def test_a_card_does_not_repeat_what_is_wrong_with_other_models(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path)
    save_tiny(tmp_path, "twice", version="2")
    shutil.copytree(tmp_path / "twice" / "2", tmp_path / "twice" / "02")

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            assert (await client.get("/v1/models/tiny-1d/card")).status_code == 404

    asyncio.run(main())
    assert caplog.text.count("twice/02 is skipped") == 1, "at the start"


def test_model_without_card_is_not_found(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            answer = await client.get("/v1/models/tiny-1d/card")
            assert answer.status_code == 404
            assert answer.json()["detail"] == "model 'tiny-1d' version 1 has no card.md"

    asyncio.run(main())


def test_metrics_count_a_prediction(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            body = {"inputs": {"u0": [0.0] * 16}}
            answer = await client.post("/v1/models/tiny-1d:predict", json=body)
            assert answer.status_code == 200
            text = (await client.get("/metrics")).text
            for line in (
                'turbofno_requests_total{code="200",model="tiny-1d",protocol="predict",version="1"} 1.0',
                'turbofno_fields_total{model="tiny-1d",version="1"} 1.0',
                'turbofno_request_duration_seconds_count{model="tiny-1d",version="1"} 1.0',
                'turbofno_decode_seconds_count{model="tiny-1d",version="1"} 1.0',
                'turbofno_queue_seconds_count{model="tiny-1d",version="1"} 1.0',
                'turbofno_compute_seconds_count{model="tiny-1d",version="1"} 1.0',
                'turbofno_encode_seconds_count{model="tiny-1d",version="1"} 1.0',
                'turbofno_queue_depth{model="tiny-1d",version="1"} 0.0',
                "turbofno_inflight_bytes 0.0",
            ):
                assert line in text, line

    asyncio.run(main())
