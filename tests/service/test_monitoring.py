"""The rules and the dashboard ask for what a real scrape shows, and say what to do about it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.api.gauges import OUTCOMES
from service.api.skip import HookReason
from service.app import ROUTERS, create_app
from service.decision import Decision, Reason
from service.settings import Settings
from tests.service.conftest import QUESTION, Client
from tests.service.hooking import CREATION, decided

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "service" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
# What Prometheus itself adds to every series.
TARGET = {"job", "instance"}
PROMETHEUS_OWN: dict[str, set[str]] = {"up": set()}
KNOWN_VALUES = {
    "outcome": set(OUTCOMES),
    "reason": {"none", *get_args(HookReason), *get_args(Reason)},
    "decision": {"skip", "apply", "shadow", *get_args(Decision)},
    "route": {getattr(route, "path", "") for router in ROUTERS for route in router.routes},
}


def queries() -> list[tuple[str, str]]:
    """(where, expression) of every rule and every panel; Grafana's variables stand for what it puts there."""
    rules = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return rules + [(title, expr.replace("$__rate_interval", "5m").replace("$job", ".*")) for title, expr in panels]


def walk(node: Any) -> Iterator[Any]:
    """An expression and all that it is made of."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if getattr(node, name, None) is not None:
            yield from walk(getattr(node, name))
    for argument in getattr(node, "args", None) or ():
        yield from walk(argument)


@pytest.fixture(scope="module")
def shown(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Of a scrape after some requests: the labels of each series' name."""
    settings = Settings(bundle_dir=bundle_dir, data_dir=tmp_path_factory.mktemp("data"), hook_deadline_ms=60_000)
    client = Client(create_app(settings))
    assert client.recommend(QUESTION).status_code == 200
    outside = {**QUESTION, "workload": {**QUESTION["workload"], "concurrency": 100_000}}
    assert client.recommend(outside).json()["reason"] == "out_of_support"
    decided(client, CREATION)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.mark.parametrize(("where", "expr"), queries())
def test_an_expression_asks_only_for_series_and_labels_that_are_there(
    where: str, expr: str, shown: dict[str, set[str]]
) -> None:
    known = {
        **shown,
        **PROMETHEUS_OWN,
        **{rule["record"]: recorded(rule["expr"]) for rule in RULES if "record" in rule},
    }
    nodes = list(walk(promql_parser.parse(expr)))
    selectors = [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
    assert selectors, f"{where} asks for nothing"
    there: set[str] = set(TARGET)
    for selector in selectors:
        assert selector.name in known, f"{where}: nobody shows {selector.name}"
        there |= known[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in known[selector.name] | TARGET, f"{where}: {selector.name} has no {matcher.name}"
            if matcher.name in KNOWN_VALUES:
                assert set(matcher.value.split("|")) <= KNOWN_VALUES[matcher.name], f"{where}: {matcher.value}"
    for node in nodes:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= there, f"{where}: {node.modifier}"


def recorded(expr: str) -> set[str]:
    """The labels of what a rule records: those that its first sum keeps."""
    nodes = (node for node in walk(promql_parser.parse(expr)) if isinstance(node, promql_parser.AggregateExpr))
    modifier = next(nodes).modifier
    assert modifier is not None, f"{expr} sums over everything"
    return {label for label in modifier.labels if label != "le"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_how_bad_it_is_what_is_wrong_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]
    document, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / document).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert anchor == f"alert-{alert['alert'].lower()}"
    assert anchor in anchors, f"{document} has no heading for #{anchor}"


def test_every_alert_is_evaluated() -> None:
    tested = yaml.safe_load((ROOT / "tests" / "service" / "alerts.test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tested for case in test.get("alert_rule_test", ()) if case["exp_alerts"]}
    assert fired == {alert["alert"] for alert in ALERTS}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, which comes with Prometheus, is not on PATH")
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    rules = ROOT / "tests" / "service" / "alerts.test.yaml"
    done = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_has_an_id_a_title_and_a_place_for_every_panel() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        squares = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not squares & taken, f"{panel['title']} lies over another panel"
        taken |= squares


def test_every_metric_of_ours_is_on_the_dashboard_or_in_a_rule(shown: dict[str, set[str]]) -> None:
    asked = " ".join(expr for _, expr in queries())
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown if name.startswith("memorypolicy_")}
    # The digest alone is what the alert compares; the dashboard shows it with the rest of the bundle.
    assert {name for name in ours if name not in asked} == set()


def test_the_example_of_a_scrape_loads_the_rules_and_asks_under_the_job_of_the_dashboard() -> None:
    scrape = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert all((MONITORING / name).is_file() for name in scrape["rule_files"])
    # /metrics is the path where nothing else is said; who may read it is asked for a token.
    assert ["authorization" in job for job in scrape["scrape_configs"]] == [True]
