"""The report of a load test as one HTML file. It holds its styles and pictures, and loads nothing."""

from datetime import UTC, datetime
from html import escape

from ratebound.clock import SECOND
from ratebound.loadtest.check import LoadCheck
from ratebound.loadtest.judge import ClientVerdict
from ratebound.loadtest.latency import SHARES, LatencyFigures
from ratebound.loadtest.report import LoadReport, client_name, limit_words, milliseconds, worst_first
from ratebound.report.curves import PercentileCurve, percentile_curves
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

MOST_CLIENTS = 200  # rows of the table
CLIENT_BARS = 60


def report_html(report: LoadReport) -> str:
    """Return a report as an HTML page with pictures."""
    started = datetime.fromtimestamp(report.started, UTC)
    about = (
        f"{escape(visible(report.load))}, {report.clients} client{'s' * (report.clients != 1)},"
        f" {report.elapsed:.1f} s. Started {started:%Y-%m-%d %H:%M:%S} UTC."
    )
    parts = [
        _tiles(report),
        _checks(report),
        _limit_table(report),
        _time_picture(report),
        _latency_picture(report),
        _clients_picture(report),
        _clients_table(report),
        notes_card(report.notes),
    ]
    return report_page(f"Load test: {report.target}", about, parts)


def _tiles(report: LoadReport) -> str:
    total = report.granted + report.refused
    return tiles(
        [
            ("Verdict", report.verdict),
            ("Granted", f"{report.granted:,}"),
            ("Refused", f"{report.refused:,}"),
            ("Refusal rate", percent(report.refused / total if total else 0)),
            ("p99", milliseconds(report.latencies.answered.percentile(0.99))),
        ]
    )


def _checks(report: LoadReport) -> str:
    rows = [[_outcome(check), _words(check)] for check in report.checks]
    return card("checks", "Checks", ("result", "check"), rows, empty="None.", texts=("result", "check"))


def _outcome(check: LoadCheck) -> str:
    return f'<td><span class="outcome {check.outcome.lower()}">{check.outcome}</span></td>'


def _words(check: LoadCheck) -> str:
    examples = "".join(f"<li>{escape(visible(example))}</li>" for example in check.examples)
    shown = f'<ul class="examples">{examples}</ul>' if examples else ""
    return (
        f'<td style="width:100%"><strong>{escape(visible(check.name))}</strong><br>'
        f'<span class="muted">{escape(visible(check.why))}</span>{shown}</td>'
    )


def _limit_table(report: LoadReport) -> str:
    expected = limit_words(report.expected.limits) or "not known"
    rows = [
        [name_cell("expected"), _text_cell(f"{expected} ({report.expected.source})")],
        [name_cell("headers"), _text_cell(report.told or "none")],
        [name_cell("found"), _text_cell(report.found.words)],
    ]
    note = '<p class="muted">“Found” is read from the answers alone, without headers.</p>'
    return card("limit", "The limit", ("source", "limit"), rows, empty="", note=note, texts=("source", "limit"))


def _text_cell(text: str) -> str:
    return f'<td style="width:100%">{escape(visible(text))}</td>'


def _time_picture(report: LoadReport) -> str:
    length = report.bin_seconds
    bars = [
        StackedBar(
            f"{one.begin:g} s",
            one.granted,
            one.refused,
            f"{one.begin:g} s: {one.granted:,} granted, {one.refused:,} refused, {one.errors:,} errors",
        )
        for one in report.timeline
    ]
    rate = min((limit.count * SECOND / limit.period_us for limit in report.expected.limits), default=None)
    clients = 1 if report.shared else report.clients
    line = None if rate is None else rate * length * clients
    about = "" if line is None else f"the limit on average: {line:.3g} in {length:g} s"
    if line is not None and line > 2 * max((bar.lower + bar.upper for bar in bars), default=0):
        line = None  # far above everything: it would flatten the bars
    told = f"{report.granted:,} granted and {report.refused:,} refused, in steps of {length:g} s."
    if line is not None:
        told += " A limit may grant more than its average for a moment: a burst, or a new window."
    figure = stacked_bars("time", "Answers over time", told, bars, line=line, about=about)
    return figure_card("time", "Answers over time", ("Granted", "Refused"), figure, told)


def _latency_picture(report: LoadReport) -> str:
    groups = (("granted", report.latencies.granted), ("refused", report.latencies.refused))
    curves = [PercentileCurve(name, one.answers, one.percentile) for name, one in groups if one.answers]
    if not curves:
        return ""
    told = (
        f"From the time at which each request was due. The sender was at most {milliseconds(report.late)} late (99 %)."
    )
    figure = percentile_curves("latency", "Latency by percentile", told, curves, milliseconds)
    rows = [_latency_row(name, one) for name, one in groups if one.answers]
    numbers = table("Latency, as numbers", ("answers", *SHARES, "max"), rows, ("answers",))
    return figure_card("latency", "Latency by percentile", ("Granted", "Refused"), figure, told, more=numbers)


def _latency_row(name: str, figures: LatencyFigures) -> list[str]:
    return [name_cell(name), *(number_cell(milliseconds(value)) for value in figures.figures().values())]


def _clients_picture(report: LoadReport) -> str:
    if len(report.verdicts) < 2:
        return ""
    shown = report.verdicts[:CLIENT_BARS]
    bars = [
        StackedBar(
            str(one.client),
            one.granted,
            one.refused,
            f"{client_name(one.client)}: {one.granted:,} granted, {one.refused:,} refused",
        )
        for one in shown
    ]
    fair = report.fairness
    told = f"{fair.least:,} to {fair.most:,} grants per client; Jain's index is {fair.jain:.3f} (1: all alike)."
    if len(shown) < len(report.verdicts):
        told += f" The first {len(shown)} of {len(report.verdicts)} clients."
    figure = stacked_bars("clients", "Answers by client", told, bars)
    return figure_card("clients", "Answers by client", ("Granted", "Refused"), figure, told)


def _clients_table(report: LoadReport) -> str:
    worst = worst_first(report.verdicts)[:MOST_CLIENTS]
    most = max((one.granted for one in worst), default=0)
    is_judged = bool(report.expected.limits)
    rows = [_client_row(one, most, is_judged=is_judged) for one in worst]
    more = len(report.verdicts) - len(worst)
    note = f'<p class="muted">And {more:,} more clients, which are no worse.</p>' if more else ""
    note += (
        '<p class="muted">A request was decided at some instant between sending it and its answer. “Allowed” is the'
        " least and the most that the limit can have granted of these requests, over all such instants.</p>"
    )
    columns = ("client", "share", "granted", "refused", "allowed", "verdict")
    return card("verdicts", "Granted against allowed", columns, rows, empty="No answers.", note=note, texts=TEXTS)


TEXTS = ("client", "verdict")


def _client_row(one: ClientVerdict, most: int, *, is_judged: bool) -> list[str]:
    allowed = f"{one.at_least:,} to {one.at_most:,}" if one.at_least != one.at_most else f"{one.at_most:,}"
    return [
        name_cell(client_name(one.client)),
        bar_cell(one.granted / most if most else 0, "used"),
        number_cell(f"{one.granted:,}"),
        number_cell(f"{one.refused:,}"),
        number_cell(allowed if is_judged else "not known"),
        f"<td>{escape(one.words if is_judged else 'not judged')}</td>",
    ]
