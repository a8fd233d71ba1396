"""The result of a replay as one HTML file. It holds its styles and pictures, and loads nothing.

Clients choose paths, and some choose their names: all text from the log is escaped, and invisible characters are
written out.
"""

from collections.abc import Callable, Sequence
from html import escape

from ratebound.replay.report import ClientOutcome, LimitOutcome, PolicyOutcome, ReplayReport, TimeOutcome, report_notes
from ratebound.replay.suggest import GroupEvidence, Suggestion
from ratebound.report.page import (
    bar_cell,
    card,
    figure_card,
    name_cell,
    notes_card,
    number_cell,
    percent,
    report_page,
    table,
    tiles,
    visible,
)
from ratebound.report.pictures import StackedBar, stacked_bars

BARS = 120  # of a picture
LONGEST = 120  # characters of a name
TEXTS = (
    "client",
    "endpoint",
    "rule",
    "limit",
    "part",
    "reason",
    "first denied",
    "last denied",
    "from",
    "in one",
    "line",
)
NONE = "None."


def report_html(report: ReplayReport) -> str:
    """Return a report as an HTML page with pictures."""
    files = ", ".join(report.files[:3]) + (", …" if len(report.files) > 3 else "")
    span = f"{report.first} to {report.last}" if report.first else "no requests"
    about = (
        f"{report.lines:,} lines, {report.malformed:,} malformed, format {_text(report.format or 'unknown')}."
        f" {escape(span)}."
    )
    parts = [_tiles(report)]
    if report.policy is not None:
        parts.append(_over_time(report, "policy", report.policy, lambda one: one.denied))
        if report.before is not None:
            parts.append(_over_time(report, "before", report.before, lambda one: one.denied_before))
            parts += ['<div class="columns">', *_comparison(report), "</div>"]
        parts += [_clients(report), '<div class="columns">', _rules("rules", report.policy)]
        parts += ["" if report.before is None else _rules("rules-before", report.before), _endpoints(report)]
        parts += [_statuses(report), "</div>"]
    if report.suggestion is not None:
        parts += _suggestion(report.suggestion)
    return report_page(f"Replay of {files}", about, [*parts, _unjudged(report), notes_card(report_notes(report))])


def _text(text: str) -> str:
    return escape(visible(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"))


def _name(text: str, tag: str = "th") -> str:
    return name_cell(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", tag)


def _tiles(report: ReplayReport) -> str:
    about = "≈ " if report.is_estimate else ""
    facts = [("Requests", f"{report.requests:,}"), ("Clients", f"{about}{report.clients:,}")]
    if report.policy is not None:
        facts += [
            ("Denied", f"{report.policy.denied:,}"),
            ("Denied share", percent(report.denied_share)),
            ("Clients denied", f"{about}{report.denied_clients:,}"),
        ]
    if report.before is not None:
        facts += [("Newly denied", f"{report.newly_denied:,}"), ("Freed", f"{report.freed:,}")]
    if report.shadow_denied:
        facts.append(("Denied in shadow", f"{report.shadow_denied:,}"))
    return tiles(facts)


def _over_time(report: ReplayReport, name: str, policy: PolicyOutcome, denied_of: Callable[[TimeOutcome], int]) -> str:
    step = max(1, -(-len(report.timeline) // BARS))
    seconds = report.bucket_seconds * step
    bars, rows = [], []
    for place in range(0, len(report.timeline), step):
        group = report.timeline[place : place + step]
        start, requests, denied = group[0].start, sum(one.requests for one in group), sum(map(denied_of, group))
        label = start[5:10] if seconds >= 86_400 else start[11:16] if seconds >= 60 else start[11:19]
        shown = start.replace("T", " ").rstrip("Z")
        bars.append(
            StackedBar(label, requests - denied, denied, f"{shown}: {requests - denied:,} allowed, {denied:,} denied")
        )
        rows.append([_name(shown), number_cell(f"{requests:,}"), number_cell(f"{denied:,}")])
    title = f"Requests over time, {_text(policy.name)}"
    told = f"{policy.allowed:,} allowed and {policy.denied:,} denied, in steps of {_span(seconds)}. Times are UTC."
    busiest = max(bars, key=lambda bar: bar.upper, default=None)
    if busiest is not None and busiest.upper:
        told += f" Most were denied at {busiest.words}."
    numbers = table(f"{title}, as numbers", ("from", "requests", "denied"), rows, TEXTS)
    more = f"<details><summary>Numbers</summary>{numbers}</details>"
    picture = stacked_bars(name, visible(f"Requests over time, {policy.name}"[:LONGEST]), told, bars)
    return figure_card(name, title, ("Allowed", "Denied"), picture, told, more=more)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _comparison(report: ReplayReport) -> list[str]:
    def rows(clients: Sequence[ClientOutcome], changed: Callable[[ClientOutcome], int]) -> list[list[str]]:
        return [
            [
                _name(one.client),
                number_cell(f"{one.requests:,}"),
                number_cell(f"{one.denied_before:,}"),
                number_cell(f"{one.denied:,}"),
                number_cell(f"{changed(one):,}"),
            ]
            for one in clients
        ]

    columns = ("client", "requests", "denied before", "denied now", "changed")
    newly = rows(report.newly_denied_clients, lambda one: one.newly_denied)
    freed = rows(report.freed_clients, lambda one: one.freed)
    return [
        card("newly", "Clients newly denied", columns, newly, empty=NONE, texts=TEXTS),
        card("freed", "Clients freed", columns, freed, empty=NONE, texts=TEXTS),
    ]


def _clients(report: ReplayReport) -> str:
    most = max((one.denied for one in report.top), default=0)
    top = [one for one in report.top if one.denied or one.shadow_denied]
    rows = [
        [
            _name(one.client),
            bar_cell(one.denied / most if most else 0, "denied"),
            number_cell(_count(one.denied, one.missed_denied)),
            number_cell(_count(one.requests, one.missed)),
            _name(one.first_denied, "td"),
            _name(one.last_denied, "td"),
            number_cell(_span(one.denied_seconds) if one.denied > 1 else ""),
        ]
        for one in top
    ]
    note = '<p class="muted">“Denied for” adds up the times in which nothing was allowed between two denials.'
    if report.is_estimate:
        note += (
            f" More clients came than have counts of their own: {report.others.requests:,} requests and"
            f" {report.others.denied:,} denials are of others. “+N” is how many more are possible."
        )
    columns = ("client", "share", "denied", "requests", "first denied", "last denied", "denied for")
    return card("clients", "Clients denied most", columns, rows, empty=NONE, note=f"{note}</p>", texts=TEXTS)


def _count(many: int, missed: int) -> str:
    return f"{many:,} +{missed:,}" if missed else f"{many:,}"


def _rules(name: str, policy: PolicyOutcome) -> str:
    rows = []
    for rule in policy.rules:
        rows.append(_limit_row(rule, rule.rule + (" (shadow)" if rule.shadow else "")))
        limits = [one for one in policy.limits if (one.rule, one.shadow) == (rule.rule, rule.shadow)]
        rows += [_limit_row(one, f"    {one.limit}") for one in limits]
    columns = ("rule", "share", "denial rate", "denied", "allowed")
    return card(name, f"Rules and limits of {_text(policy.name)}", columns, rows, empty=NONE, texts=TEXTS)


def _limit_row(one: LimitOutcome, text: str) -> list[str]:
    share = one.denied / max(one.allowed + one.denied, 1)
    indent = ' style="padding-left:18px;font-weight:400"' if text[:1] == " " else ' style="font-weight:650"'
    return [
        f'<th scope="row" class="name"{indent}>{_text(text.strip())}</th>',
        bar_cell(share, "denied"),
        number_cell(percent(share)),
        number_cell(f"{one.denied:,}"),
        number_cell(f"{one.allowed:,}"),
    ]


def _endpoints(report: ReplayReport) -> str:
    rows = [
        [
            _name(one.endpoint),
            bar_cell(one.denied / max(one.requests, 1), "denied"),
            number_cell(percent(one.denied / max(one.requests, 1))),
            number_cell(f"{one.denied:,}"),
            number_cell(f"{one.requests:,}"),
        ]
        for one in report.endpoints
    ]
    columns = ("endpoint", "share", "denial rate", "denied", "requests")
    return card("endpoints", "Endpoints", columns, rows, empty=NONE, texts=TEXTS)


def _statuses(report: ReplayReport) -> str:
    total = max(sum(report.statuses.values()), 1)
    rows = [
        [_name(status), bar_cell(many / total, "used"), number_cell(f"{many:,}"), number_cell(percent(many / total))]
        for status, many in report.statuses.items()
    ]
    title = "Status in the log of what is denied"
    return card("statuses", title, ("status", "share", "requests", "of all"), rows, empty=NONE, texts=("status",))


def _suggestion(found: Suggestion) -> list[str]:
    everything = found.everything
    words = (
        f"{found.honest:,} honest clients. Left out: {found.too_heavy:,} that are too heavy, and"
        f" {found.mostly_refused:,} whose requests were mostly refused. {found.criterion}"
    )
    if found.is_estimate:
        words += " More clients came than are counted one by one, so the numbers are estimates."
    limits = escape(everything.text or "none")
    note = f'<p class="muted">Suggested for each client: <span class="name">{limits}</span>. {escape(words)}</p>'
    rows = [_evidence_row(group.endpoint, group, 1) for group in found.endpoints]
    columns = ("endpoint", "50 %", "90 %", "99 %", "99.9 %", "most", "suggested")
    title = "What honest clients used at most in one minute, by endpoint"
    return [
        _evidence_card(everything, note),
        '<div class="columns">',
        *(_touched_picture(everything, place) for place in range(len(everything.periods))),
        "</div>",
        card("endpoint-evidence", title, columns, rows, empty=NONE, texts=TEXTS),
    ]


def _evidence_card(group: GroupEvidence, note: str) -> str:
    rows = [_evidence_row(one.period, group, place) for place, one in enumerate(group.periods)]
    columns = ("in one", "50 %", "90 %", "99 %", "99.9 %", "most", "suggested")
    return card("everything", "What honest clients used at most", columns, rows, empty=NONE, note=note, texts=TEXTS)


def _evidence_row(name: str, group: GroupEvidence, place: int) -> list[str]:
    period = group.periods[place]
    needed = "" if (period.suggested, period.period) in group.limits else " (not needed)"
    numbers = [*(f"{value:,}" for value in period.peaks), f"{period.suggested:,}{needed}"]
    return [_name(name), *map(number_cell, numbers)]


def _touched_picture(group: GroupEvidence, place: int) -> str:
    period = group.periods[place]
    bars = [
        StackedBar(
            f"{one.limit:,}",
            one.honest_touched,
            one.others_touched,
            f"{one.limit:,}/{period.period} touches {one.honest_touched:,} honest clients and {one.others_touched:,}"
            f" others; {percent(one.share_over)} of the requests are above it",
        )
        for one in period.candidates
    ]
    title = f"Clients that a limit per {period.period} touches"
    suggested = next((bar.words for bar in bars if bar.name == f"{period.suggested:,}"), "")
    told = f"Suggested: {suggested}."
    rows = [
        [
            _name(f"{one.limit:,}/{period.period}"),
            number_cell(f"{one.honest_touched:,}"),
            number_cell(f"{one.others_touched:,}"),
            number_cell(f"{one.requests_over:,}"),
            number_cell(percent(one.share_over)),
        ]
        for one in period.candidates
    ]
    columns = ("limit", "honest clients", "others", "requests above", "share of requests")
    more = f"<details><summary>Numbers</summary>{table(title, columns, rows, TEXTS)}</details>"
    name = f"touched-{period.period}"
    picture = stacked_bars(name, title, told, bars)
    return figure_card(name, title, ("Honest clients", "Others"), picture, told, more=more)


def _unjudged(report: ReplayReport) -> str:
    rows = [
        [_name(one.rule or policy.name), _name(one.part or "the whole rule", "td"), f"<td>{_text(one.reason)}</td>"]
        for policy in (report.policy, report.before)
        if policy is not None
        for one in policy.unjudged
    ]
    if not rows:
        return ""
    return card("unjudged", "Not judged", ("rule", "part", "reason"), rows, empty=NONE, texts=TEXTS)
