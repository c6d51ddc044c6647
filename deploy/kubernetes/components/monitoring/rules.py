"""Writes rules.yaml, the alert rules as the Prometheus operator takes them, from deploy/prometheus/alerts.yml."""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
ALERTS = HERE.parents[2] / "prometheus" / "alerts.yml"


def manifest() -> str:
    """The text of rules.yaml."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "turbofno"},
        "spec": yaml.safe_load(ALERTS.read_text()),
    }
    text: str = yaml.safe_dump(rule, sort_keys=False, width=100)
    return f"# Made by rules.py from deploy/prometheus/alerts.yml.\n{text}"


if __name__ == "__main__":
    (HERE / "rules.yaml").write_text(manifest())
