"""The error for a model that does not serve."""

from __future__ import annotations

from turbofno.service.engine.interface import ModelStatus, not_served


def test_the_error_for_an_unknown_model_names_some_of_many() -> None:
    many = [ModelStatus(f"m{number}", "1", "READY") for number in range(300)]
    message = not_served("x", None, many).message
    assert message.startswith("there is no model 'x'; there are m0, m1, ")
    assert message.endswith("m19 and 280 more: GET /v1/models lists all")
    assert not_served("x", None, many[:2]).message == "there is no model 'x'; there are m0, m1"
    assert not_served("x", None, ()).message == "there is no model 'x'; there are none"
