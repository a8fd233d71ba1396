"""One page of figures for a terminal, from the view that dashboards show. Names are shown as text: nothing in them is
read as a style, and what cannot be printed is escaped."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratebound.cli.words import duration, number

NARROW = 70  # columns: below, bars and candidates are left out
BAR = 16  # columns
MOST_CLIENTS = 10
MOST_NAMES = 3  # of processes


def figures_page(view: Mapping[str, Any], width: int) -> RenderableType:
    """Return a view as a page for a terminal of this width."""
    parts: list[RenderableType] = [_heading(view)]
    if view["problem"]:
        parts.append(Text(shown(view["problem"]), style="bold red"))
    parts += [_totals(view), _rules(view["rules"], width)]
    storage = _storage(view["storage"])
    if storage is not None:
        parts.append(storage)
    if view["top"]:
        parts.append(_clients(view["top"]))
    if view["penalized"]:
        parts.append(_penalized(view["penalized"]))
    parts += _lines(view)
    return Group(*parts)


def shown(text: str) -> str:
    """Return text as it is, with escapes if it cannot be printed."""
    return text if text.isprintable() else ascii(text)[1:-1]


def rate(value: float) -> str:
    """Return a number per second, below 10 with one digit after the point."""
    return number(round(value, 1)) if value >= 0.05 or not value else "<0.1"


def _heading(view: Mapping[str, Any]) -> Text:
    processes: Sequence[Mapping[str, Any]] = view["processes"]
    many = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    names = ", ".join(shown(str(process["name"])) for process in processes[:MOST_NAMES])
    more = ", …" if len(processes) > MOST_NAMES else ""
    at = datetime.fromtimestamp(view["at"], UTC)
    text = Text(f"ratebound top, {at:%Y-%m-%d %H:%M:%S} UTC, {many}", style="bold")
    return text.append(f": {names}{more}" if names else "", style="not bold dim")


def _totals(view: Mapping[str, Any]) -> Text:
    total: Mapping[str, float] = view["total"]
    decided = total["allowed"] + total["denied"]
    text = Text()
    text.append(f"allowed {rate(total['allowed'])}/s", style="green")
    share = f" ({total['denied'] / decided:.1%})" if total["denied"] else ""
    text.append(f"   denied {rate(total['denied'])}/s{share}", style="red" if total["denied"] else "")
    if total["degraded"]:
        text.append(f"   without the storage {rate(total['degraded'])}/s", style="yellow")
    if total["shed"]:
        text.append(f"   shed {rate(total['shed'])}/s", style="yellow")
    latency = view["latency"]
    if latency is not None:
        text.append(f"   p50 {_time(latency['p50'])}, p99 {_time(latency['p99'])}")
    return text


def _rules(rules: Sequence[Mapping[str, Any]], width: int) -> RenderableType:
    if not rules:
        return Text("no rule has decided yet", style="dim")
    is_wide = width >= NARROW
    has_shadows = any(rule["shadow"] or rule["candidate"] for rule in rules)
    table = _table()
    table.add_column("rule", overflow="fold")
    table.add_column("allowed/s", justify="right", no_wrap=True)
    table.add_column("denied/s", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("denied", no_wrap=True)
    table.add_column("used", justify="right", no_wrap=True)
    if is_wide and has_shadows:
        table.add_column("would deny/s", justify="right", no_wrap=True)
    for rule in rules:
        decided = rule["allowed"] + rule["denied"]
        share = rule["denied"] / decided if decided else 0.0
        cells = [Text(shown(rule["rule"])), Text(rate(rule["allowed"])), Text(rate(rule["denied"]))]
        if is_wide:
            cells.append(_bar(share))
        cells.append(Text("" if rule["used"] is None else f"{rule['used']:.0%}"))
        if is_wide and has_shadows:
            trials = [rule[kind] for kind in ("shadow", "candidate") if rule[kind]]
            cells.append(Text(", ".join(rate(trial["denied"]) for trial in trials)))
        table.add_row(*cells)
    return table


def _bar(share: float) -> Text:
    """Return a bar for a share, with at least a sliver for a share that is not 0."""
    full = min(BAR, max(1, round(share * BAR))) if share > 0 else 0
    text = Text("█" * full, style="red")
    text.append("░" * (BAR - full), style="dim")
    return text.append(f" {share:4.0%}" if share else "", style="default")


def _storage(storage: Mapping[str, Any]) -> RenderableType | None:
    parts: list[RenderableType] = []
    if storage["nodes"]:
        table = _table()
        table.add_column("storage", overflow="fold")
        table.add_column("state", no_wrap=True)
        for name in ("calls/s", "errors/s", "p99"):
            table.add_column(name, justify="right", no_wrap=True)
        for node in storage["nodes"]:
            state = Text("out of reach", style="bold red") if node["is_open"] else Text("answers", style="green")
            p99 = "" if node["p99"] is None else _time(node["p99"])
            table.add_row(Text(shown(node["node"]) or "storage"), state, rate(node["calls"]), rate(node["errors"]), p99)
        parts.append(table)
    if storage["keys"] is not None:
        parts.append(Text(f"states: {number(storage['keys'])} of {number(storage['max_keys'])}"))
    return Group(*parts) if parts else None


def _clients(clients: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table()
    table.add_column("most denied clients", overflow="fold")
    table.add_column("denials", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for client in clients[:MOST_CLIENTS]:
        about = "≤ " if client["error"] else ""
        state = "blocked" if client.get("blocked") else ""
        table.add_row(Text(shown(client["client"])), f"{about}{number(client['denials'])}", state)
    return table


def _penalized(clients: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table()
    table.add_column("blocked by a penalty", overflow="fold")
    table.add_column("penalty", overflow="fold")
    table.add_column("for", justify="right", no_wrap=True)
    for client in clients[:MOST_CLIENTS]:
        table.add_row(Text(shown(client["client"])), Text(shown(client["limit"])), _time(client["seconds"]))
    return table


def _lines(view: Mapping[str, Any]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    slots = ", ".join(f"{shown(one['limit'])} {number(one['held'])}" for one in view["slots"])
    if slots:
        lines.append(Text(f"slots held: {slots}"))
    lowered = {name: factor for name, factor in view["factors"].items() if factor < 1}
    if lowered:
        factors = ", ".join(f"{shown(name)} {factor:.0%}" for name, factor in lowered.items())
        lines.append(Text(f"limits lowered because of overload: {factors}", style="yellow"))
    return lines


def _table() -> Table:
    return Table(box=SIMPLE, pad_edge=False)


def _time(seconds: float) -> str:
    return duration(round(seconds * 1_000_000))
