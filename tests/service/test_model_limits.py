"""Limits of single models: their text form, and that the service enforces them."""

from __future__ import annotations

import asyncio
import io
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from pydantic import ValidationError

from tests.draws import generator
from tests.service.http.asgi import serving
from tests.service.tiny import rollable_module, save_rollable, save_tiny
from turbofno.service.model_limits import ModelLimits, parse, to_text
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(30)


def test_limits_survive_text_and_json() -> None:
    settings = Settings(model_limits=" a fields=3  batch=2,b bytes=100,")  # type: ignore[arg-type]
    assert settings.model_limits == {"a": ModelLimits(3, 0, 2), "b": ModelLimits(0, 100, 0)}
    assert parse(to_text(settings.model_limits)) == settings.model_limits
    assert Settings(**settings.model_dump(mode="json")).model_limits == settings.model_limits
    assert parse("") == {}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("a", "does not state limits"),
        ("a fields=0", "N above 0"),
        ("a fields=-1", "expected NAME"),
        ("a rows=1", "expected NAME"),
        ("a fields=1 fields=2", "expected NAME"),
        ("a fields=1, a batch=1", "appears twice"),
        ("a batch=17", "TURBOFNO_MAX_BATCH_SIZE=16"),
    ],
)
def test_invalid_limits_are_refused(wrong: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Settings(model_limits=wrong)  # type: ignore[arg-type]


def test_limits_of_an_unknown_model_fail_the_start(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    async def main() -> None:
        async with serving(tmp_path, model_limits="tinny-1d fields=3"):
            pass

    with pytest.raises(ValueError, match=r"MODEL_LIMITS names tinny-1d, .* holds tiny-1d"):
        asyncio.run(main())


def test_limits_are_enforced_over_http(tmp_path: Path) -> None:
    save_tiny(tmp_path, "bounded")
    module = rollable_module()
    save_rollable(tmp_path, module)
    random = generator()

    async def main() -> None:
        limits = "bounded fields=6 batch=2, tiny-flow bytes=20000 batch=3"
        async with serving(tmp_path, model_limits=limits) as (client, _):

            async def post(path: str, fields: int) -> tuple[int, str, bytes]:
                array = random.standard_normal((fields, 1, 16)).astype(np.float32)
                body = io.BytesIO()
                np.save(body, array)
                headers = {"Content-Type": "application/x-npy"}
                answer = await client.post(path, content=body.getvalue(), headers=headers)
                return answer.status_code, answer.text, answer.content

            answers = await asyncio.gather(*(post("/v1/models/bounded:predict", 3) for _ in "1234"))
            assert sorted(status for status, *_ in answers) == [200, 200, 429, 429]
            refused = next(text for status, text, _ in answers if status == 429)
            assert "TURBOFNO_MODEL_LIMITS" in refused
            status, text, _ = await post("/v1/models/bounded:predict", 7)
            assert (status, "TURBOFNO_MODEL_LIMITS" in text) == (413, True)
            assert (await post("/v1/models/bounded:predict", 6))[0] == 200, "given back"
            status, text, _ = await post("/v1/models/tiny-flow:predict", 500)
            assert (status, "TURBOFNO_MODEL_LIMITS" in text) == (413, True)
            # More than a batch: split.
            status, _, content = await post("/v1/models/tiny-flow:rollout?steps=2&frames=last", 10)
            assert (status, np.load(io.BytesIO(content)).shape) == (200, (1, 10, 1, 16))
            metrics = (await client.get("/metrics")).text
            batches = re.search(
                r'turbofno_batch_size_bucket\{backend="\w+",le="2.0",model="bounded".*\} (\S+)',
                metrics,
            )
            everything = re.search(
                r'turbofno_batch_size_count\{.*model="bounded".*\} (\S+)', metrics
            )
            assert batches is not None
            assert everything is not None
            assert float(batches[1]) == float(everything[1]) >= 6

    asyncio.run(main())
