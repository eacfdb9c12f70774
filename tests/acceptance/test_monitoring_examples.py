"""The examples of examples/monitoring: Prometheus' own tool finds nothing wrong with the rules, the dashboard and the
metrics, and every metric that they ask for is one that is exposed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from recruiter import Recruiter
from recruiter.cli.main import app
from recruiter.metrics import RecruiterCollector

EXAMPLES = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "dashboard.json").read_text())
ALERTS = [rule for group in yaml.safe_load((EXAMPLES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
KEDA: dict[str, Any] = yaml.safe_load((EXAMPLES / "keda.yaml").read_text())


@pytest.fixture
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    return program


@pytest.fixture
def exposed(recruiter: Recruiter) -> str:
    """The text of a scrape in which everything has a value."""

    @recruiter.task
    def add() -> None: ...

    add.enqueue()
    recruiter.run_all(add)
    recruiter.controls.set_limit("task:add", 3, count=10, per="1m")
    registry = CollectorRegistry()
    registry.register(RecruiterCollector(recruiter))
    return generate_latest(registry).decode()


def checked(promtool: str, *arguments: str, text: str | None = None) -> None:
    done = subprocess.run([promtool, *arguments], input=text, capture_output=True, text=True, cwd=EXAMPLES, timeout=60)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "SUCCESS" in done.stdout or not (done.stdout + done.stderr).strip()


def of_the_dashboard() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["expr"]


def of_keda() -> Iterator[str]:
    return (trigger["metadata"]["query"] for trigger in KEDA["spec"]["triggers"])


def test_rules_and_configuration(promtool: str) -> None:
    checked(promtool, "check", "rules", "alerts.yaml")
    checked(promtool, "check", "config", "prometheus.yml")


def test_each_alert_comes_when_it_should(promtool: str) -> None:
    checked(promtool, "test", "rules", "alerts_test.yaml")


def test_metrics_follow_the_conventions(promtool: str, exposed: str) -> None:
    checked(promtool, "check", "metrics", text=exposed)


def test_every_expression_of_the_dashboard_and_of_keda_can_be_parsed(promtool: str, tmp_path: Path) -> None:
    expressions = [*of_the_dashboard(), *of_keda()]
    filled = [text.replace("$__rate_interval", "5m").replace("$group", ".*") for text in expressions]
    rules = [{"record": f"dashboard:expression{number}", "expr": text} for number, text in enumerate(filled)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert len(rules) > 20
    checked(promtool, "check", "rules", str(file))


def test_every_metric_that_is_asked_for_is_exposed(exposed: str) -> None:
    known = set(re.findall(r"^(recruiter_[a-z_]+)", exposed, re.M))
    asked = "\n".join([*of_the_dashboard(), *of_keda(), *(rule["expr"] for rule in ALERTS)])
    wanted = set(re.findall(r"recruiter_[a-z_]+", asked))
    assert len(wanted) > 12
    assert wanted <= known


def test_labels_that_are_asked_for_are_exposed(exposed: str) -> None:
    asked = "\n".join([*of_the_dashboard(), *of_keda(), *(rule["expr"] for rule in ALERTS)])
    for name, label in set(re.findall(r"(recruiter_[a-z_]+)\{(\w+)[=~]", asked)):
        assert re.search(rf"^{name}\{{[^}}]*{label}=", exposed, re.M), (name, label)


def test_the_command_of_the_deployment_is_one_that_is_understood() -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "metrics.yaml").read_text()))
    (container,) = documents[0]["spec"]["template"]["spec"]["containers"]
    _, bound, _ = app.parse_args(container["args"], exit_on_error=False, print_error=False)
    assert bound.arguments["host"] == "0.0.0.0"
    port = container["ports"][0]["containerPort"]
    assert documents[1]["spec"]["ports"][0]["port"] == port == 9420


def test_keda_scales_a_deployment_that_there_is() -> None:
    deployments = yaml.safe_load_all((EXAMPLES.parent / "deploy" / "kubernetes" / "recruiter.yaml").read_text())
    names = {each["metadata"]["name"] for each in deployments if each["kind"] == "Deployment"}
    assert KEDA["spec"]["scaleTargetRef"]["name"] in names
    assert "recruiter_oldest_due_job_age_seconds" in next(of_keda())
