"""The manifests that kustomize builds, against Kubernetes' schemas and the service's routes and settings."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.e2e.server_process import ROOT
from tests.service.http.fake_engine import FakeEngine
from turbofno.service.app import create_app
from turbofno.service.http.guard import Guard
from turbofno.service.settings import ENV_PREFIX, MIB, Settings

KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30.0", "1.37.0")
OVERLAYS = ("overlays/cpu", "overlays/a100", "overlays/mig")
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ServingRuntime", "InferenceService"}
"""Kinds without a schema in Kubernetes."""

Manifest = dict[str, Any]


@cache
def built(folder: str) -> list[Manifest]:
    """The manifests that `kubectl apply -k` sends."""
    if kustomize := shutil.which("kustomize"):
        command = [kustomize, "build"]
    elif kubectl := shutil.which("kubectl"):
        command = [kubectl, "kustomize"]
    else:
        pytest.skip("neither kustomize nor kubectl is installed")
    done = subprocess.run([*command, str(KUBERNETES / folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(folder: str, kind: str) -> Manifest:
    """The only manifest of a kind."""
    [found] = [manifest for manifest in built(folder) if manifest["kind"] == kind]
    return found


def container(folder: str) -> Manifest:
    """The service's container."""
    if folder == "kserve":
        [found] = one(folder, "ServingRuntime")["spec"]["containers"]
    else:
        [found] = one(folder, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", OVERLAYS)
def test_manifests_are_valid(folder: str, version: str) -> None:
    kinds = set()
    for manifest in built(folder):
        kinds.add(manifest["kind"])
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)
    assert kinds >= {
        "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy",
        "ServiceMonitor", "PrometheusRule",
    }  # fmt: skip


def test_schemas_reject_a_misspelt_field() -> None:
    deployment = yaml.safe_load(yaml.safe_dump(one("overlays/cpu", "Deployment")))
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSecs"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[0], strict=True)


def test_kserve_container_is_valid() -> None:
    deployment = yaml.safe_load(yaml.safe_dump(one("overlays/a100", "Deployment")))
    deployment["spec"]["template"]["spec"]["containers"] = [container("kserve")]
    kubernetes_validate.validate(deployment, VERSIONS[0], strict=True)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_selectors_match_the_pods(folder: str) -> None:
    pods = one(folder, "Deployment")["spec"]["template"]["metadata"]["labels"]
    service = one(folder, "Service")
    monitor = one(folder, "ServiceMonitor")["spec"]
    for selected, by in (
        (pods, one(folder, "Deployment")["spec"]["selector"]["matchLabels"]),
        (pods, service["spec"]["selector"]),
        (pods, one(folder, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]),
        (pods, one(folder, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]),
        (service["metadata"]["labels"], monitor["selector"]["matchLabels"]),
    ):
        assert by
        assert by.items() <= selected.items()
    ports = {port["name"] for port in container(folder)["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert {end["port"] for end in monitor["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }
    assert monitor["jobLabel"] in service["metadata"]["labels"]
    target = one(folder, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == one(folder, "Deployment")["metadata"]["name"]


@pytest.mark.parametrize("folder", [*OVERLAYS, "kserve"])
def test_probes_use_existing_routes(folder: str) -> None:
    app = create_app(Settings(device="cpu"), engine=FakeEngine())
    routes = {path for path, methods in app.openapi()["paths"].items() if "get" in methods}
    probes = [value for key, value in container(folder).items() if key.endswith("Probe")]
    assert len(probes) >= 2
    assert {probe["httpGet"]["path"] for probe in probes} <= routes


@pytest.mark.parametrize("folder", [*OVERLAYS, "kserve"])
def test_variables_are_settings(folder: str) -> None:
    for variable in container(folder).get("env", ()):
        assert variable["name"].removeprefix(ENV_PREFIX).lower() in Settings.model_fields


@pytest.mark.parametrize("folder", [*OVERLAYS, "kserve"])
def test_services_set_no_variables(folder: str) -> None:
    """With service links a Service named turbofno sets TURBOFNO_PORT=tcp://10.0.0.1:80, with which the server does not start."""
    if folder == "kserve":
        pod = one(folder, "InferenceService")["spec"]["predictor"]
    else:
        pod = one(folder, "Deployment")["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("folder", [*OVERLAYS, "kserve"])
def test_host_names_used_inside_a_cluster_are_allowed(folder: str) -> None:
    env = {one["name"]: one["value"] for one in container(folder)["env"]}
    # The image listens on all addresses.
    guard = Guard(Settings(host="0.0.0.0", allowed_hosts=env["TURBOFNO_ALLOWED_HOSTS"]))
    for host in (
        "10.42.0.7:8080", "[fd00::7]:8080", "turbofno", "turbofno.turbofno", "turbofno.turbofno.svc:80",
        "turbofno.turbofno.svc.cluster.local",
    ):  # fmt: skip
        guard.check_host(host.encode())


@pytest.mark.parametrize("folder", OVERLAYS)
def test_grace_period_covers_the_drain(folder: str) -> None:
    pod = one(folder, "Deployment")["spec"]["template"]["spec"]
    before = 10  # seconds that preStop sleeps
    assert f"sleep({before})" in container(folder)["lifecycle"]["preStop"]["exec"]["command"][-1]
    drain = Settings.model_fields["drain_seconds"].default
    last = 5 + 5 + 2  # for the last answers of front ends and engines, and for traces
    assert pod["terminationGracePeriodSeconds"] >= before + drain + last


@pytest.mark.parametrize(
    ("folder", "gpu"),
    [
        ("overlays/cpu", None),
        ("overlays/a100", "nvidia.com/gpu"),
        ("overlays/mig", "nvidia.com/mig-1g.10gb"),
        ("kserve", "nvidia.com/gpu"),
    ],
)
def test_each_requests_its_device_and_the_image_for_it(folder: str, gpu: str | None) -> None:
    limits = container(folder)["resources"]["limits"]
    assert {name: count for name, count in limits.items() if "nvidia" in name} == (
        {gpu: "1"} if gpu else {}
    )
    assert container(folder)["image"].endswith("-cuda" if gpu else "-cpu")


@pytest.mark.parametrize(
    ("folder", "batch"), [("overlays/cpu", 16), ("overlays/a100", 64), ("overlays/mig", 64)]
)
def test_a_pod_is_added_for_two_full_batches_in_the_queue(folder: str, batch: int) -> None:
    [metric] = one(folder, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["target"]["averageValue"] == str(2 * batch)
    on_gpu = f"TURBOFNO_MAX_BATCH_SIZE={batch}" in (ROOT / "Dockerfile").read_text()
    assert on_gpu or batch == Settings.model_fields["max_batch_size"].default


def test_the_memory_limit_on_a_cpu_covers_what_the_settings_allow() -> None:
    """As docs/how-to/tune.md plans it: otherwise one batch of gradients ends the pod, and with it all other requests."""
    ready, settings = 512 * MIB, Settings(device="cpu")
    most = (
        ready
        + settings.max_inflight_bytes
        + 3 * settings.max_batch_bytes
        + 1.5 * settings.max_gradient_bytes
    )
    limit = container("overlays/cpu")["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert int(limit.removesuffix("Gi")) * 1024 * MIB >= most


def test_operator_rules_match_the_alert_rules() -> None:
    folder = KUBERNETES / "components" / "monitoring"
    made = runpy.run_path(str(folder / "rules.py"))["manifest"]()
    assert (folder / "rules.yaml").read_text() == made, "run rules.py"
