"""The alert rules and the dashboard ask for what is exported, and the dashboard shows all of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from ratebound import Limiter, MemoryStorage
from ratebound.decision import Decision
from ratebound.events import BlockBegan, Called, Decided, PressureChanged, Recovered, Shadowed, Struck, Warned
from ratebound.ledger import Ledger
from ratebound.lowered import lowered
from ratebound.notation import parse_limits
from ratebound.observe.prometheus import PrometheusListener
from ratebound.service.metrics import ledger_families
from tests.observe.promql import Wrong, asked_for

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "ratebound.rules.yml"
LEDGER_RULES = ROOT / "deploy" / "prometheus" / "ratebound-ledger.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "ratebound.json"
GUIDE = ROOT / "docs" / "guides" / "observing.md"
GIVEN = {"job", "instance"}  # labels that Prometheus adds to everything


def shed() -> Decision:
    """A decision that denies because a limit is lowered."""
    limits = lowered(tuple(parse_limits("2/hour as api")), 10)
    storage, group = MemoryStorage(), (("k", limits, 1, None, None),)
    storage.evaluate([group])
    return Decision(group, storage.evaluate([group])[0])


def exported() -> tuple[dict[str, set[str]], dict[str, str], set[str]]:
    """What a scrape shows: sample → labels, sample → family, and the buckets' bounds as they are printed."""
    registry = CollectorRegistry()
    listener, limiter = PrometheusListener(registry), Limiter("1/hour")
    listener.watch(limiter, name="api")
    decision = limiter.hit("k")
    listener(Decided(decision, 0.1))
    listener(Struck(decision, decision.limit, 0, 1))
    listener(BlockBegan(decision, decision.limit, 0, 300.0))
    listener(Warned(decision, decision.limit, 0, 0))
    listener(Decided(Limiter("1/calendar-day over allow").hit("k", cost=2), 0.1))
    listener(Called("node", 0.1, None))
    listener(Recovered("node", 0.1, 1))
    listener(Shadowed("rule", False, True))
    listener(PressureChanged({"low": 0.5}))
    listener(Decided(shed(), 0.1))
    labels: dict[str, set[str]] = {}
    families: dict[str, str] = {}
    bounds = set()
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels[sample.name] = set(sample.labels)
                families[sample.name] = family.name
                bounds.add(sample.labels.get("le", ""))
    return labels, families, bounds


LABELS, FAMILIES, BOUNDS = exported()


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text()))


def panel_expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def queries() -> list[str]:
    """Of the variables: label_values takes a label as its second argument, which is checked as one."""
    texts = [item["definition"] for item in dashboard()["templating"]["list"] if item["type"] == "query"]
    return [re.sub(r", (\w+)\)$", r") by (\1)", text) for text in texts]


def check(expression: str) -> set[str]:
    """The families that an expression asks for; fails for one that is not exported, or has no such label."""
    asked = asked_for(expression)
    metrics = [name for name, _, _ in asked if name]
    assert metrics, expression
    for name, matchers, over_range in asked:
        if name:
            assert name in LABELS, f"{name} is not exported: {expression}"
            assert set(matchers) <= LABELS[name] | GIVEN, expression
            assert matchers.get("le", "") in BOUNDS, expression
            counts = name.endswith(("_total", "_bucket", "_count", "_sum"))
            if "label_values" not in expression:
                assert over_range == counts, f"{name}: counters are looked at over a range, gauges are not"
        else:
            assert set(matchers) <= GIVEN.union(*(LABELS[metric] for metric in metrics)), expression
    return {FAMILIES[name] for name in metrics}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_rule_asks_for_what_is_exported(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert check(rule["expr"])
    left = {label for name, labels, _ in asked_for(rule["expr"]) for label in labels if not name} or GIVEN | {"storage"}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= left, "a label that the expression has summed away"


def test_the_alert_rules_of_the_ledger_ask_for_what_the_service_exports(tmp_path: Path) -> None:
    exported = {
        family["name"]: family["type"]
        for family in ledger_families(Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name"))
    }
    (group,) = yaml.safe_load(LEDGER_RULES.read_text())["groups"]
    asked: set[str] = set()
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        for name, labels, is_over_range in asked_for(rule["expr"]):
            assert set(labels) <= GIVEN, rule["expr"]
            if name:
                asked.add(name)
                assert is_over_range == (exported[name] == "counter"), rule["expr"]
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= GIVEN
    assert asked == set(exported)
    guide = (ROOT / "docs" / "guides" / "ledger.md").read_text()
    assert set(re.findall(r"^\| `(ratebound_ledger_\w+)` \|", guide, re.MULTILINE)) == set(exported)


@pytest.mark.parametrize("expression", [*panel_expressions(), *queries()])
def test_a_panel_asks_for_what_is_exported(expression: str) -> None:
    assert check(expression)


def test_all_that_is_exported_is_on_the_dashboard() -> None:
    shown = set[str]().union(*(check(expression) for expression in panel_expressions()))
    assert shown == set(FAMILIES.values())


def test_the_dashboard_can_be_imported_anywhere() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    sources = {target["datasource"]["uid"] for panel in panels for target in panel["targets"]}
    assert sources == {"${datasource}"}
    names = {item["name"] for item in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(panels)))
    assert used == names
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels that lie on each other"
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        for target in panel["targets"]:
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {label for name, labels, _ in asked_for(target["expr"]) for label in labels if not name}
            assert legend <= (grouped or GIVEN | {"storage"}), target


def test_the_guide_lists_every_metric_with_its_labels_and_every_alert() -> None:
    text = GUIDE.read_text()
    rows = re.findall(r"^\| `(ratebound_\w+)` \|([^|]*)\|", text, re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    wanted: dict[str, set[str]] = {}
    for sample, family in FAMILIES.items():
        name = sample if sample.endswith("_total") else family
        wanted.setdefault(name, set()).update(LABELS[sample] - {"le"})
    assert listed == wanted
    assert set(re.findall(r"^\| `(Ratebound\w+)` \|", text, re.MULTILINE)) == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(ratebound_decisions_total[5m])",
        "sum(rate(ratebound_decisions_total[5m])))",
        'ratebound_keys{job="a")',
        "rates(ratebound_decisions_total[5m])",
        "rate(ratebound_decisions_total[5 m])",
    ],
)
def test_the_reader_of_expressions_sees_what_is_wrong(expression: str) -> None:
    with pytest.raises(Wrong):
        asked_for(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "rate(ratebound_decision_total[5m])",
        "ratebound_decisions_total > 1",
        'rate(ratebound_decisions_total{node="a"}[5m])',
        "sum by (node) (rate(ratebound_decisions_total[5m]))",
        'rate(ratebound_used_share_bucket{le="0.8"}[5m])',
        "rate(ratebound_keys[5m])",
    ],
)
def test_the_check_of_expressions_sees_what_is_not_there(expression: str) -> None:
    with pytest.raises(AssertionError):
        check(expression)
