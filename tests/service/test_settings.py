"""Settings: where they are read from, limits that contradict each other, warnings about exposure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from turbofno.service.processes.liveness import HEARTBEAT_SECONDS
from turbofno.service.settings import Settings, env_name, exposure_warnings, misspelt_variables
from turbofno_ops._native import LIBRARY_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path


def test_environment_sets_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOFNO_MAX_BATCH_SIZE", "7")
    assert Settings().max_batch_size == 7
    assert Settings(max_batch_size=3).max_batch_size == 3


def test_every_setting_is_described_and_has_an_environment_name() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert env_name(name) == f"TURBOFNO_{name.upper()}"
    with pytest.raises(KeyError):
        env_name("no_such_setting")


def test_models_are_a_comma_separated_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOFNO_MODELS", "burgers-1d, darcy-2d")
    assert Settings().models == ("burgers-1d", "darcy-2d")
    monkeypatch.setenv("TURBOFNO_MODELS", "")
    assert Settings().models is None


def test_model_control_is_off_unless_it_or_keys_are_asked_for(tmp_path: Path) -> None:
    assert not Settings().model_control
    assert not Settings(host="0.0.0.0").model_control
    assert Settings(model_control=True).model_control
    assert Settings(api_keys_file=tmp_path / "keys").model_control
    assert not Settings(api_keys_file=tmp_path / "keys", model_control=False).model_control


def test_hosts_and_origins_are_comma_separated_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOFNO_ALLOWED_HOSTS", "FNO.example.com, *.lab.example.com")
    monkeypatch.setenv("TURBOFNO_CORS_ORIGINS", "https://Lab.example.com,http://[::1]:3000")
    settings = Settings()
    assert settings.allowed_hosts == ("fno.example.com", "*.lab.example.com")
    assert settings.cors_origins == ("https://lab.example.com", "http://[::1]:3000")


@pytest.mark.parametrize(
    "values",
    [
        {"allowed_hosts": "http://fno.example.com"},
        {"allowed_hosts": "fno.example.com:80"},
        {"allowed_hosts": "fno.*.com"},
        {"cors_origins": "*"},
        {"cors_origins": "lab.example.com"},
        {"cors_origins": "https://lab.example.com/"},
        {"cors_origins": "null"},
    ],
)
def test_invalid_host_or_origin_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="expected"):
        Settings(**values)


def test_empty_host_which_would_listen_on_all_addresses_is_refused() -> None:
    with pytest.raises(ValidationError, match="host"):
        Settings(host="")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1  # type: ignore[misc]


def test_misspelt_setting_is_an_error() -> None:
    with pytest.raises(ValidationError):
        Settings(max_batchsize=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "values",
    [
        {"max_body_bytes": 100},
        {"max_body_bytes": 2**40},
        {"max_fields_per_request": 20_000},
        {"max_queued_fields": 10},
    ],
)
def test_limits_that_contradict_each_other_name_both_variables(values: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=r"TURBOFNO_\w+=\d+ must not exceed TURBOFNO_\w+="):
        Settings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_batch_size", "max_body_bytes", "request_deadline_seconds"])
def test_zero_limit_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Settings(**{name: 0})  # type: ignore[arg-type]


def test_a_time_for_hangs_of_hardly_a_heartbeat_is_refused() -> None:
    with pytest.raises(ValidationError, match="hang_seconds"):
        Settings(hang_seconds=2 * HEARTBEAT_SECONDS)


def test_misspelt_variables_are_reported_with_the_closest_setting() -> None:
    names = ["TURBOFNO_MAX_BATCHSIZE", "turbofno_port", "TURBOFNO_PORT", "TURBOFNO_QQQQ", "PATH"]
    assert misspelt_variables(names) == [
        "TURBOFNO_MAX_BATCHSIZE is not a setting; did you mean TURBOFNO_MAX_BATCH_SIZE?",
        "TURBOFNO_QQQQ is not a setting; `turbofno config` lists all settings",
    ]


def test_tls_key_without_certificate_is_refused(tmp_path: Path) -> None:
    for name in ("tls_key", "tls_client_ca"):
        with pytest.raises(ValidationError, match="TURBOFNO_TLS_CERTIFICATE is not"):
            Settings(**{name: tmp_path / "file"})


def test_public_address_without_keys_or_tls_gives_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert exposure_warnings(Settings()) == []
    assert exposure_warnings(Settings(host="::1")) == []
    (line,) = exposure_warnings(Settings(host="0.0.0.0"))
    assert "without API keys" in line
    (line,) = exposure_warnings(Settings(host="10.0.0.7", api_keys_file=file))
    assert "without TLS" in line
    assert exposure_warnings(Settings(host="::", api_keys_file=file, tls_certificate=file)) == []


def test_variables_that_others_read_are_not_reported_as_misspelt() -> None:
    """Of the client, of the build, as in `TURBOFNO_PURE=1 make serve`, and of the kernels."""
    assert misspelt_variables(["TURBOFNO_API_KEY", "TURBOFNO_PURE", LIBRARY_VARIABLE]) == []


def test_devices_are_numbers_or_names() -> None:
    settings = Settings(frontends=2, devices="0,cuda:3,cpu")
    assert settings.devices == ("cuda:0", "cuda:3", "cpu")
    groups = Settings(frontends=2, devices="0+1, 2+cuda:3+4,cpu+cpu")
    assert groups.devices == ("cuda:0+cuda:1", "cuda:2+cuda:3+cuda:4", "cpu+cpu")
    assert Settings(frontends=1, devices=groups.devices).devices == groups.devices


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": "0"}, "TURBOFNO_FRONTENDS"),
        ({"frontends": 1, "devices": "gpu"}, "'gpu' is not a device"),
        ({"frontends": 1, "devices": "0+"}, r"'0\+' is not a device"),
        ({"frontends": 1, "devices": "0+cpu"}, r"several of either joined by \+"),
        ({"frontends": 1, "devices": "0+0"}, "cuda:0 is named twice"),
        ({"frontends": 1, "devices": "0+1,1+2"}, "cuda:1 is named twice"),
        ({"frontends": 1, "devices": "0+1,1"}, "cuda:1 is named twice"),
        ({"frontends": 1, "shared_memory_bytes": 1000}, "TURBOFNO_MAX_BODY_BYTES"),
    ],
)
def test_contradicting_process_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**given)


@pytest.mark.parametrize("setting", ["api_keys_file", "tls_key"])
def test_a_file_of_keys_that_everybody_can_read_is_warned_of(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "secret"
    file.write_text("me 0123456789abcdef\n")
    given = {setting: file, "tls_certificate": file}
    for mode in (0o600, 0o640):
        file.chmod(mode)
        assert exposure_warnings(Settings(**given)) == []
    file.chmod(0o604)
    (line,) = exposure_warnings(Settings(**given))
    assert f"{env_name(setting)}={file}" in line
    assert "chmod o-r" in line
