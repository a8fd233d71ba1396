"""Answers of all calls, with figures that a real service rarely has at once: an outage, overload, hostile names."""

import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ratebound.admin.calls import Operator
from ratebound.admin.messages import CallError
from ratebound.flow import Flow
from ratebound.ledger.spans import spans_between
from ratebound.policy.duration_text import read_seconds

RULES = {
    "api": ("300/minute burst 60", 412.0, 6.1, 0.62),
    "search": ("60/minute", 88.4, 4.9, 0.81),
    "login": ("5/minute; 20 distinct account/hour", 11.2, 3.4, 0.93),
    "export": ("3 concurrent for 10 minutes", 0.8, 0.1, 0.33),
    "webhooks": ("100/second", 61.0, 0.0, 0.22),
}
DIGESTS = ("9f12c07ab3e1", "41be88d0c2f7", "c3d90e114a5b", "7720fa3be69d", "e8815b02cc46", "05adf3917e28")


class FakeCalls:
    """Answers of all calls, from a state that a test can change: `view` is a dict that `change` may alter."""

    def __init__(self, change: Callable[[dict[str, Any]], None] = lambda view: None) -> None:
        self.change = change
        self.blocks: list[dict[str, Any]] = []
        self.overrides: list[dict[str, Any]] = []
        self.switches: dict[str | None, dict[str, Any]] = {}
        self.changes: list[dict[str, Any]] = []
        self.rules = [rule(name, limits) for name, (limits, *_) in RULES.items()]
        self.policy: dict[str, Any] = {
            "source": "/etc/ratebound/policy.yaml",
            "text": "rules: []",
            "format": "yaml",
            "error": "",
            "storage": "redis://cache.internal:6379",
            "can_reload": True,
        }
        self.revision = 0
        self.random = random.Random(7)
        self.is_young = False  # without a history
        self.blocked: set[str] = set()  # digests
        self.granted = 0
        self.degraded: str | None = None  # why usage is not that of the storage
        self.problems: list[dict[str, Any]] = []  # of the policy file as it is now
        self.has_ledger = False
        self.out_of_ledger: set[str] = set()  # what the ledger does not answer
        self.asked_of_ledger: list[tuple[str, dict[str, Any]]] = []

    def call(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
        """Answer a call of the table at once."""
        yield from ()
        return getattr(self, f"on_{name}")(dict(arguments), operator.name)

    def changed(self, action: str, target: str, detail: str, by: str) -> None:
        self.revision += 1
        entry = {"at": stamp(0), "by": by, "action": action, "target": target, "detail": detail}
        self.changes.insert(0, entry)

    def on_figures(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        now = time.time()
        rules: list[dict[str, Any]] = []
        for name, (_, allowed, denied, used) in RULES.items():
            wave = wobble(now, name) * self.random.uniform(0.95, 1.05)
            one = {"rule": name, "allowed": allowed * wave, "denied": denied * wave**2, "used": used}
            rules.append({**one, "shadow": None, "candidate": None})
        rules[1]["candidate"] = {"allowed": 71.0, "denied": 22.3}
        rules[4]["shadow"] = {"allowed": 59.0, "denied": 2.0}
        top = [
            {"client": digest, "denials": count, "error": 0, "blocked": digest in self.blocked}
            for digest, count in zip(DIGESTS, (1841, 902, 377, 214, 96, 31), strict=True)
        ]
        view: dict[str, Any] = {
            "at": now,
            "revision": str(self.revision),
            "processes": [{"name": f"edge-{i}:4711", "age": 0.2 * i, "is_local": i == 1} for i in (1, 2, 3)],
            "problem": "",
            "total": {
                "allowed": sum(one["allowed"] for one in rules),
                "denied": sum(one["denied"] for one in rules),
                "degraded": 0.0,
                "shed": 0.0,
            },
            "latency": {"p50": 0.000021, "p99": 0.00091},
            "rules": sorted(rules, key=lambda one: -one["denied"]),
            "storage": {
                "nodes": [
                    {"node": f"cache-{i}:6379", "is_open": False, "calls": 190.0, "errors": 0.0, "p99": 0.0011 * i}
                    for i in (1, 2, 3)
                ],
                "keys": 48_211,
                "max_keys": 1_000_000,
            },
            "factors": {"low": 1.0, "normal": 1.0, "high": 1.0},
            "slots": [{"limit": "export", "held": 4}, {"limit": "render", "held": 11}],
            "top": top,
            "penalized": [{"client": DIGESTS[1], "limit": "guessing", "seconds": 240.0}],
            "shadow_report": [
                {
                    "rule": "search",
                    "candidate": True,
                    "allowed": 90_210,
                    "denied": 11_460,
                    "live_allowed": 96_822,
                    "live_denied": 4_848,
                    "since": now - 7200,
                },
                {
                    "rule": "webhooks",
                    "candidate": False,
                    "allowed": 219_200,
                    "denied": 7_090,
                    "live_allowed": 226_290,
                    "live_denied": 0,
                    "since": now - 7200,
                },
            ],
        }
        self.change(view)
        return view

    def on_history(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        now = time.time()
        chosen = random.Random(3)
        allowed = sum(one[1] for one in RULES.values())

        def points(step: int, size: int) -> list[list[float] | None]:
            found: list[list[float] | None] = []
            for i in range(size):
                at = now - (size - 1 - i) * step
                wave = wobble(at, "") * chosen.uniform(0.97, 1.03)
                burst = 90 * math.exp(-(((now - at - 1300) / 260) ** 2)) + 30 * math.exp(-(((now - at - 45) / 12) ** 2))
                found.append(
                    None
                    if self.is_young
                    else [allowed * wave, 14.5 * wave**2 + burst * chosen.uniform(0.8, 1.2), 0.0, 0.0, 0.0009]
                )
            return found

        lines = (
            {}
            if self.is_young
            else {
                name: [
                    [rate * wobble(now - (359 - i) * 10, name), denied * wobble(now - (359 - i) * 10, name) ** 4]
                    for i in range(360)
                ]
                for name, (_, rate, denied, _) in RULES.items()
            }
        )
        return {
            "recent": {"step": 1, "end": now, "points": points(1, 120)},
            "hour": {"step": 10, "end": now, "points": points(10, 360)},
            "rules": lines,
        }

    def on_rules(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        for one in self.rules:
            set_by = self.switches.get(one["name"])
            one["switch"] = set_by
            one["state"] = set_by["state"] if set_by else "shadow" if one["mode"] == "shadow" else "on"
        for_all = self.switches.get(None)
        return {
            "state": for_all["state"] if for_all else "on",
            "switch": for_all,
            "rules": self.rules,
            "descriptors": [],
        }

    def on_promote(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        found = next(one for one in self.rules if one["name"] == arguments["rule"])
        state = "candidate" if found["candidate"] else "on"
        return self.on_set_switch({**arguments, "state": state}, by)

    def on_set_switch(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        name = arguments.get("rule")
        made = {"rule": name, "state": arguments["state"], **self.made(arguments, by), "candidate": "", "stale": False}
        self.switches[name] = made
        self.changed("switch", name or "", arguments["state"], by)
        return made

    def on_remove_switch(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        removed = self.switches.pop(arguments.get("rule"), None)
        self.changed("remove switch", arguments.get("rule") or "", "", by)
        return {"removed": removed is not None}

    def on_switches(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"switches": list(self.switches.values())}

    def on_blocks(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"blocks": self.blocks}

    def on_block(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        self.blocked |= {arguments.get("digest", "")}
        client = arguments.get("client") or f"203.0.113.{DIGESTS.index(arguments['digest'])}"
        made = {"client": client, **self.made(arguments, by)}
        self.blocks.append(made)
        self.changed("block", client, made["reason"], by)
        return made

    def on_unblock(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        kept = [one for one in self.blocks if one["client"] != arguments["client"]]
        removed, self.blocks = len(kept) < len(self.blocks), kept
        self.changed("unblock", arguments["client"], "", by)
        return {"removed": removed}

    def on_overrides(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"overrides": self.overrides}

    def on_override(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        given = {name: arguments.get(name) for name in ("client", "limits", "tier")}
        made = {**given, "rules": list(arguments.get("rules", ())), **self.made(arguments, by)}
        self.overrides.append(made)
        self.changed("override", made["client"], made["limits"] or made["tier"], by)
        return made

    def on_remove_override(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        self.overrides = [one for one in self.overrides if one["client"] != arguments["client"]]
        self.changed("remove override", arguments["client"], "", by)
        return {"removed": True}

    def on_usage(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        entry = {"rule": "api", "name": "api", "limit": "300/minute burst 60", "quota": 300, "used": 190}
        more = {"remaining": 110, "granted": 0, "resets_at": stamp(42), "previous": None}
        month = {"rule": "month", "name": "month", "limit": "1000/calendar-month", "quota": 1000 + self.granted}
        month |= {"used": 400, "remaining": 600 + self.granted, "granted": self.granted, "resets_at": stamp(86_400)}
        found = [{**entry, **more}, {**month, "previous": 0}]
        return {"usage": [{**one, "blocked": False, "degraded": self.degraded} for one in found]}

    def on_grant(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        self.granted += arguments["units"]
        self.changed(
            "grant", "".join(arguments["client"]), f"{arguments['units']} units of rule {arguments['rule']}", by
        )
        return self.on_usage(arguments, by)

    def on_holders(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"holders": [{"limit": "export/concurrent", "id": "3927677207903484", "expires_at": stamp(25)}]}

    def on_reset(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"done": True}

    def on_top(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        top = self.on_figures({}, by)["top"]
        if arguments.get("names"):
            self.changed("show names", "", "", by)
            top = [{**one, "name": f"203.0.113.{i}"} for i, one in enumerate(top)]
        return {"top": top}

    def on_changes(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"changes": self.changes}

    def on_policy(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return self.policy

    def on_check_policy(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        changes = [
            {
                "where": "rule search",
                "what": "changed",
                "detail": "limits: 60/minute becomes 45/minute",
                "starts_anew": False,
            },
            {"where": "rule beta", "what": "added", "detail": "as 5 of 5: limits: '10/minute'", "starts_anew": False},
        ]
        return {"valid": True, "problems": [], "changes": changes}

    def on_reload_policy(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        if self.problems:
            return {"valid": False, "problems": self.problems, "changes": []}
        self.changed("reload", "", "", by)
        return self.on_check_policy(arguments, by)

    def on_health(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        return {"healthy": True, "problems": [], "version": "1", "compiled": True}

    def on_ledger_totals(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        self.ask_ledger("totals", arguments)
        since, until = (datetime.fromisoformat(arguments[name]) for name in ("since", "until"))
        spans = spans_between(since, until, arguments["by"], arguments["zone"])
        totals = []
        for number, at in enumerate(spans):
            wave = wobble(number * 400, "")
            allowed = round({"hour": 9_000, "day": 180_000, "month": 5_100_000}[arguments["by"]] * wave)
            denied = round(allowed * 0.06 * wave**3)
            one = {"units": allowed * 2, "allowed": allowed, "denied": denied, "overage": allowed // 20}
            totals.append({"at": at.isoformat().replace("+00:00", "Z"), **one})
        return {**arguments, "totals": totals}

    def on_ledger_top(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        self.ask_ledger("top", arguments)
        if arguments.get("names"):
            self.changed("show names", "", "3 clients of the ledger", by)
        top = []
        for number, (digest, units) in enumerate(zip(DIGESTS, (91_204, 44_120, 9_001), strict=False)):
            one = {"client": digest, "rule": "api", "units": units, "allowed": units}
            name = {"name": f"user:{number}"} if arguments.get("names") else {}
            top.append({**one, "denied": units // 31, "overage": units // 9, **name})
        return {"top": sorted(top, key=lambda one: -one[arguments["by"]])}

    def on_ledger_denials(self, arguments: dict[str, Any], by: str) -> dict[str, Any]:
        self.ask_ledger("denials", arguments)
        rules = [("login", 8_000, 2_400), ("search", 61_000, 3_300), ("webhooks", 44_000, 0)]
        found = [{"rule": rule, "allowed": yes, "denied": no, "rate": no / (yes + no)} for rule, yes, no in rules]
        return {"denials": found}

    def ask_ledger(self, name: str, arguments: dict[str, Any]) -> None:
        if name in self.out_of_ledger:
            raise CallError(503, "The ledger could not answer: the database does not answer")
        self.asked_of_ledger.append((name, arguments))

    @staticmethod
    def made(arguments: dict[str, Any], by: str) -> dict[str, Any]:
        seconds = read_seconds(arguments["for"]) if arguments.get("for") else None
        end = None if seconds is None else stamp(seconds)
        return {"since": stamp(0), "until": end, "reason": arguments.get("reason", ""), "by": by}


def stamp(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def wobble(at: float, name: str) -> float:
    """A factor around one that moves slowly, differently for each name."""
    phase = sum(name.encode()) % 7
    return 1 + 0.18 * math.sin(at / 600 + phase) + 0.07 * math.sin(at / 97 + phase) + 0.03 * math.sin(at / 13 + phase)


def rule(name: str, limits: str) -> dict[str, Any]:
    conditions: dict[str, Any] = {"paths": [f"/{name}"], "methods": [], "hosts": []}
    return {
        "name": name,
        "limits": {"default": limits},
        "by": ["address"] if name == "login" else ["user", "address"],
        "match": {**conditions, "headers": {}, "tiers": [], "addresses": []},
        "mode": "shadow" if name == "webhooks" else "enforce",
        "state": "on",
        "switch": None,
        "candidate": {"default": "45/minute"} if name == "search" else None,
        "penalty": "guessing" if name == "login" else "",
        "priority": "normal",
        "stage": "early",
        "default": name == "api",
        "final": False,
        "cost": "1",
        "charge": "",
        "over": "",
        "endpoint": False,
    }
