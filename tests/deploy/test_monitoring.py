"""Prometheus on a running service: sums, data for every panel and rule, metrics with Triton's names; the smoke test passes."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml

from tests.deploy.conftest import GRIDS
from tests.deploy.monitoring import (
    ALERTS,
    DASHBOARD,
    JOB,
    MISSING,
    dashboard_targets,
    finite,
    installed,
)
from tests.deploy.smoke import smoke
from tests.e2e.server_process import ROOT
from turbofno.service.processes.metrics_sum import PER_PROCESS

if TYPE_CHECKING:
    from tests.deploy.conftest import Watched
    from tests.deploy.monitoring import Target

ADAPTER = ROOT / "deploy/kubernetes/components/autoscaling/adapter-values.yaml"
MODEL = f'job="{JOB}", model="tiny-2d"'


def test_autoscaler_query_has_data_of_the_right_metric(watched: Watched) -> None:
    [rule] = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    query = rule["metricsQuery"].replace("<<.GroupBy>>", "instance")  # pod, on Kubernetes
    query = query.replace("<<.Series>>", rule["name"]["as"]).replace(
        "<<.LabelMatchers>>", f'job="{JOB}"'
    )
    assert watched.prometheus.history(query, watched.since, watched.until)
    series = watched.prometheus.history(rule["name"]["as"], watched.since, watched.until)
    names = {labels["__name__"] for labels, _ in series}
    assert names == {"turbofno_queue_depth"}


def test_promtool_accepts_the_metrics(watched: Watched) -> None:
    text = httpx.get(f"{watched.service.url}/metrics").content
    # Triton's names break promtool's naming rules.
    ours = b"".join(line for line in text.splitlines(keepends=True) if b"nv_inference" not in line)
    check = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True)
    complaints = [line for line in check.stderr.decode().splitlines() if "turbofno" in line]
    assert complaints == []
    assert check.returncode in (0, 3), check.stderr  # 3: only lint, of Python's metrics


def test_fields_and_requests_add_up(watched: Watched) -> None:
    ask = watched.prometheus
    ask.wait_for(f"sum(turbofno_fields_total) == {watched.predicted}")
    # Each round of a client ends with a request that is too large.
    refused = 'sum(turbofno_rejections_total{reason="body_too_large"})'
    ask.wait_for(f"{refused} == {watched.predicted / 4}")
    per_model = watched.predicted / len(GRIDS)
    assert ask.value(f"sum(turbofno_fields_total{{{MODEL}}})") == per_model
    for code in ("200", "422"):
        assert ask.value(f'sum(turbofno_requests_total{{{MODEL}, code="{code}"}})') == per_model / 4
    assert ask.value(f"sum(turbofno_batch_size_sum{{{MODEL}}})") == per_model


def test_latency_is_at_least_the_sum_of_its_steps(watched: Watched) -> None:
    names = ("decode", "queue", "compute", "encode")
    steps = [f"sum(turbofno_{name}_seconds_sum{{{MODEL}}})" for name in names]
    ask = watched.prometheus
    whole = ask.value(f"sum(turbofno_request_duration_seconds_sum{{{MODEL}}})")
    assert 0 < ask.value(" + ".join(steps)) < whole


@pytest.mark.parametrize("target", dashboard_targets(), ids=lambda t: f"{t.panel}: {t.legend}")
def test_every_query_of_the_dashboard_has_data(watched: Watched, target: Target) -> None:
    found = [
        point
        for labels, line in watched.prometheus.history(
            target.expression, watched.since, watched.until
        )
        for point in [(labels, value) for _, value in line]
    ]
    assert finite(found), target.expression
    assert all(target.name(labels) for labels, _ in found), "a series without a name"


def test_every_rule_is_evaluated_and_no_alert_fires(watched: Watched) -> None:
    watched.prometheus.wait_for("turbofno:queue_wait_seconds")
    groups = httpx.get(f"{watched.prometheus.url}/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 12
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    # The simulated GPU process has no model and reports splits. No alert of the service may even be pending.
    alerts = [alert for rule in rules for alert in rule.get("alerts", ())]
    service = watched.service.url.removeprefix("http://")
    mine = [alert["labels"] for alert in alerts if alert["labels"].get("instance") == service]
    assert mine == []
    assert {a["labels"]["alertname"] for a in alerts} <= {"TurbofnoNoModel", "TurbofnoOutOfMemory"}


def test_triton_names_agree_with_the_statistics_extension(watched: Watched) -> None:
    [stats] = httpx.get(f"{watched.service.url}/v2/models/tiny-2d/stats").json()["model_stats"]
    ask = watched.prometheus
    ask.wait_for(f"sum(nv_inference_count) == {watched.predicted}")
    of = f"{{{MODEL}}}"
    assert ask.value(f"sum(nv_inference_count{of})") == stats["inference_count"]
    assert ask.value(f"sum(nv_inference_exec_count{of})") == stats["execution_count"]
    success = stats["inference_stats"]["success"]
    assert ask.value(f"sum(nv_inference_request_success{of})") == success["count"]
    failed = f'sum(nv_inference_request_failure{{{MODEL}, reason="OTHER"}})'
    good_requests = watched.predicted / len(GRIDS) / 4
    ask.wait_for(f"{failed} == {2 * good_requests}")  # one 422 and one 413 for each
    assert ask.value(f"sum(nv_inference_pending_request_count{of})") == 0
    queue = stats["inference_stats"]["queue"]
    microseconds = ask.value(f"sum(nv_inference_queue_duration_us{of})")
    assert microseconds == pytest.approx(queue["ns"] / 1e3, rel=1e-3)


def test_queries_of_tritons_dashboards_have_data(watched: Watched) -> None:
    """Expressions from Triton's dashboard and autoscaling examples."""
    ask, since = watched.prometheus, watched.since
    for expression in (
        "rate(nv_inference_count[5s])",
        "sum(rate(nv_inference_request_success[5s])) by (instance)",
        "rate(nv_inference_compute_infer_duration_us[5s]) / 1000",
        "avg(delta(nv_inference_queue_duration_us[5s])"
        " / (1 + delta(nv_inference_request_success[5s])))",
        "sum(rate(nv_inference_count[5s])) / sum(rate(nv_inference_exec_count[5s]))",
    ):
        assert ask.history(expression, since, watched.until), expression


def test_running_service_passes_the_smoke_test(watched: Watched) -> None:
    """Comes last, because what it asks for is counted too."""
    done = smoke(watched.service.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all well\n")
    for model in ("tiny-1d 16:", "tiny-2d 16x16:"):
        assert model in done.stdout


@pytest.mark.skipif(not installed(), reason=MISSING)
@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")], ids=str
)
def test_promtool_accepts_the_alert_rules(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=ALERTS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_series_of_several_processes_have_legends_of_their_own() -> None:
    for target in dashboard_targets():
        if " by (" not in target.expression and any(
            one in target.expression for one in PER_PROCESS
        ):
            assert "{{process}}" in target.legend, target.panel


def test_panels_do_not_overlap() -> None:
    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
