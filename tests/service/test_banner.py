"""The shell commands that `serve` prints."""

from __future__ import annotations

from tests.service.tiny import tiny_config
from turbofno.models.core.config import Normalization, read_config
from turbofno.models.zoo import TRAINED
from turbofno.service.banner import banner


def test_a_description_of_several_lines_stays_one_comment() -> None:
    config = tiny_config().model_copy(update={"description": "first\nrm -rf x\r\u2028\x1b[2Jend"})
    lines = banner("http://x", [config], page=False).split("\n")
    assert lines[2] == r"# tiny-1d: first rm -rf x \x1b[2Jend"
    assert lines[3].startswith("python3 -c ")


def test_the_banner_names_the_page_if_it_is_served() -> None:
    assert "http://x/ui)" in banner("http://x", [], page=True)
    assert "/ui" not in banner("http://x", [], page=False)


def test_a_wave_is_like_the_training_data_as_far_as_it_is_known() -> None:
    """On the training grid, if it is small, and with the mean and deviation that the network is normalised by."""
    config = tiny_config()
    normalised = config.model_copy(
        update={
            "normalization": Normalization(
                input_mean=(300.0,),
                input_std=(10.0,),
                output_mean=(0.0, 0.0),
                output_std=(1.0, 1.0),
            )
        }
    )
    for model, wave in ((config, "[sin("), (normalised, "[300 + 10*sin(")):
        command = banner("http://x", [model], page=False).split("\n")[3]
        assert f"{wave}2*pi*i/16) for i in range(16)]" in command


def test_with_api_keys_the_commands_send_one() -> None:
    models = [tiny_config(), read_config(TRAINED / "burgers-1d" / "config.json")]
    for page in (True, False):
        text = banner("http://x", models, page=page, keys=True)
        assert text.count("curl -sS") == text.count('-H "Authorization: Bearer $TURBOFNO_API_KEY"')
        assert text.count("curl -sS") == (3 if page else 2)


def test_the_banner_of_many_models_has_commands_for_the_first_ones() -> None:
    many = [tiny_config(f"m{number}") for number in range(300)]
    text = banner("http://x", many, page=False)
    assert [name for name in ("m0", "m9", "m10") if f"/{name}:predict" in text] == ["m0", "m9"]
    assert "290 more models: curl -sS http://x/v1/models" in text
    assert " more models" not in banner("http://x", many[:10], page=False)
