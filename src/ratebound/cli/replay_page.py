"""The result of a replay for a terminal of 80 columns. Names come from clients: they are shown as text, shortened."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratebound.cli.figures_page import shown
from ratebound.cli.ledger_page import bar
from ratebound.cli.words import duration
from ratebound.clock import SECOND
from ratebound.replay.report import ClientOutcome, PolicyOutcome, ReplayReport, report_notes
from ratebound.replay.suggest import GroupEvidence, Suggestion
from ratebound.report.page import percent

WIDTH = 80
LONGEST = 40  # characters of a name
BARS = 24  # rows of the picture over time


def replay_page(report: ReplayReport) -> RenderableType:
    """Return the report as a page for a terminal."""
    parts: list[RenderableType] = [_heading(report)]
    if report.policy is not None:
        parts += [_totals(report), _rules(report.policy)]
        if report.before is not None:
            parts += [_comparison(report), _rules(report.before)]
        if report.policy.denied or report.shadow_denied:
            parts += [_over_time(report), _clients(report), _endpoints(report)]
        if report.statuses:
            told = ", ".join(f"{many:,} × {status}" for status, many in report.statuses.items())
            parts.append(_line(f"Status of the denied requests in the log: {told}\n"))
    if report.suggestion is not None:
        parts += _suggestion(report.suggestion)
    parts += _notes(report)
    return Group(*parts)


def name(text: str) -> str:
    """Return a name from the log, printable and not too long."""
    safe = shown(text)
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST - 1]}…"


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style)


def _heading(report: ReplayReport) -> Text:
    files = ", ".join(map(name, report.files[:3])) + (", …" if len(report.files) > 3 else "")
    text = Text(f"Replay of {files}", style="bold")
    about = "about " if report.is_estimate else ""
    span = f"{report.first} to {report.last}" if report.first else "no requests"
    text.append(
        f"\n{report.requests:,} requests of {about}{report.clients:,} clients, {span}"
        f"\n{report.lines:,} lines, format {report.format or 'unknown'}, {report.malformed:,} malformed",
        style="not bold dim",
    )
    return text.append("\n")


def _totals(report: ReplayReport) -> Text:
    assert report.policy is not None
    denied = report.policy.denied
    about = "about " if report.is_estimate else ""
    text = Text(f"{name(report.policy.name)} denies ")
    text.append(f"{denied:,} requests ({percent(report.denied_share)})", style="bold red" if denied else "bold green")
    text.append(f" of {about}{report.denied_clients:,} clients.")
    if report.shadow_denied:
        text.append(f" Rules in shadow would deny {report.shadow_denied:,}.")
    return text


def _table(*columns: tuple[str, str]) -> Table:
    made = Table(box=SIMPLE, pad_edge=False, width=WIDTH, show_edge=False)
    for title, side in columns:
        is_name = side == "left"
        made.add_column(
            Text(title), justify="left" if is_name else "right", ratio=1 if is_name else None, no_wrap=not is_name
        )
    return made


def _rules(policy: PolicyOutcome) -> RenderableType:
    table = _table((f"rules of {name(policy.name)}", "left"), ("allowed", "right"), ("denied", "right"))
    for rule in policy.rules:
        mark = " (shadow)" if rule.shadow else ""
        table.add_row(Text(f"{rule.rule}{mark}", style="bold"), f"{rule.allowed:,}", _denied(rule.denied))
        for limit in policy.limits:
            if limit.rule == rule.rule and limit.shadow == rule.shadow:
                table.add_row(Text(f"  {limit.limit}", style="dim"), f"{limit.allowed:,}", _denied(limit.denied))
    for kind, many in policy.kinds.items():
        if kind != "limited":
            table.add_row(Text(f"{KINDS.get(kind, kind)}", style="dim"), f"{many:,}", "")
    return Group(Text(""), table)


KINDS = {
    "unmatched": "no rule matched",
    "unlimited": "no limit applies",
    "exempt": "exempt",
    "allow": "on the allow list",
    "block": "on the block list",
    "deny": "a rule with 'deny'",
    "off": "the policy is off",
}


def _denied(many: int) -> Text:
    return Text(f"{many:,}", style="red" if many else "dim")


def _comparison(report: ReplayReport) -> RenderableType:
    assert report.before is not None
    assert report.policy is not None
    text = Text(f"\nCompared with {name(report.before.name)}, which denies {report.before.denied:,}: ")
    text.append(f"{report.newly_denied:,} newly denied", style="bold red" if report.newly_denied else "")
    text.append(", ")
    text.append(f"{report.freed:,} freed", style="bold green" if report.freed else "")
    parts: list[RenderableType] = [text.append(".")]
    for title, clients, field in (
        ("newly denied", report.newly_denied_clients, "newly_denied"),
        ("freed", report.freed_clients, "freed"),
    ):
        if clients:
            table = _table((f"clients {title}", "left"), ("requests", "right"), ("before", "right"), ("now", "right"))
            table.add_column(title, justify="right", no_wrap=True)
            for one in clients:
                counts = (one.requests, one.denied_before, one.denied, getattr(one, field))
                table.add_row(Text(name(one.client)), *(f"{count:,}" for count in counts))
            parts += [Text(""), table]
    return Group(*parts)


def _over_time(report: ReplayReport) -> RenderableType:
    step = -(-len(report.timeline) // BARS)
    groups = [report.timeline[place : place + step] for place in range(0, len(report.timeline), step)]
    sums = [(group[0].start, sum(one.requests for one in group), sum(one.denied for one in group)) for group in groups]
    most = max((requests for _, requests, _ in sums), default=0)
    width = duration(report.bucket_seconds * step * SECOND)
    table = _table((f"from (UTC), {width} each", "left"), ("requests", "right"), ("denied", "right"))
    table.add_column("", width=26)
    for start, requests, denied in sums:
        shares = Text.assemble(bar((requests - denied) / most if most else 0, 20, "blue"))
        shares.rstrip()
        if denied:
            shares.append("█" * max(1, round(denied / most * 20)), style="red")
        table.add_row(start.replace("T", " ").rstrip("Z"), f"{requests:,}", _denied(denied), shares)
    return Group(Text(""), table)


def _clients(report: ReplayReport) -> RenderableType:
    table = _table(("clients", "left"), ("requests", "right"), ("denied", "right"), ("first denied", "right"))
    table.add_column("for", justify="right", no_wrap=True)
    for one in report.top:
        if one.denied or one.shadow_denied:
            table.add_row(Text(name(one.client)), _count(one.requests, one.missed), *_denials(one))
    if report.others.requests:
        table.add_row(Text("others", style="dim"), f"{report.others.requests:,}", f"{report.others.denied:,}", "", "")
    parts: list[RenderableType] = [Text(""), table]
    if report.is_estimate:
        parts.append(Text("+N: more clients came than are counted; up to N more are possible.", style="dim"))
    return Group(*parts)


def _count(many: int, missed: int) -> str:
    return f"{many:,} +{missed:,}" if missed else f"{many:,}"


def _denials(one: ClientOutcome) -> tuple[Text, str, str]:
    lasted = duration(round(one.denied_seconds) * SECOND) if one.denied > 1 else ""
    return _denied(one.denied), one.first_denied[5:16].replace("T", " "), lasted


def _endpoints(report: ReplayReport) -> RenderableType:
    table = _table(("endpoints", "left"), ("requests", "right"), ("denied", "right"), ("share", "right"))
    for one in report.endpoints:
        share = percent(one.denied / one.requests if one.requests else 0)
        table.add_row(Text(name(one.endpoint)), f"{one.requests:,}", _denied(one.denied), share)
    return Group(Text(""), table)


def _suggestion(found: Suggestion) -> Iterable[RenderableType]:
    yield Text("\nSuggested limits", style="bold")
    yield Text(
        f"{found.honest:,} honest clients; left out: {found.too_heavy:,} too heavy, {found.mostly_refused:,} mostly"
        f" refused. {found.criterion}",
        style="dim",
    )
    if found.is_estimate:
        yield Text("More clients came than are counted one by one: the numbers are estimates.", style="yellow")
    everything = found.everything
    yield from _evidence(everything, "all endpoints")
    table = _table(("limit for each client", "left"), ("honest", "right"), ("others", "right"), ("requests", "right"))
    for period in everything.periods:
        for one in period.candidates:
            chosen = (one.limit, period.period) in everything.limits
            text = Text(
                f"{one.limit:,}/{period.period}{'  ← suggested' if chosen else ''}", style="bold" if chosen else ""
            )
            table.add_row(text, f"{one.honest_touched:,}", f"{one.others_touched:,}", percent(one.share_over))
    yield Text("")
    yield table
    yield Text("Honest and other clients that a limit touches, and the share of requests above it.", style="dim")
    columns = ("50 %", "90 %", "99 %", "99.9 %", "most", "suggested")
    endpoints = _table(("endpoints, in one minute", "left"), *((text, "right") for text in columns))
    for group in found.endpoints:
        minute = group.periods[1]
        endpoints.add_row(Text(name(group.endpoint)), *(f"{value:,}" for value in (*minute.peaks, minute.suggested)))
    yield Text("")
    yield endpoints


def _evidence(group: GroupEvidence, title: str) -> Iterable[RenderableType]:
    table = _table((title, "left"), *((text, "right") for text in ("50 %", "90 %", "99 %", "99.9 %", "most")))
    table.add_column("suggested", justify="right", no_wrap=True)
    for one in group.periods:
        chosen = (one.suggested, one.period) in group.limits
        table.add_row(
            Text(f"  in one {one.period}"),
            *(f"{value:,}" for value in one.peaks),
            Text(f"{one.suggested:,}", style="bold" if chosen else "dim"),
        )
    yield Text("")
    yield table


def _notes(report: ReplayReport) -> Sequence[RenderableType]:
    notes: list[str] = []
    for policy in filter(None, (report.policy, report.before)):
        for one in policy.unjudged:
            what = " ".join(filter(None, (one.rule and f"rule {one.rule}", one.part)))
            notes.append(f"Not judged in {name(policy.name)}: {what}: {one.reason}.")
    notes += report_notes(report)
    return [Text(f"• {shown(note)}", style="dim") for note in dict.fromkeys(notes)]
