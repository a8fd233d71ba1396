"""The calls of operators about the usage ledger: what the ledger answers, as values for JSON.

A ledger may keep the names of clients. They are shown as digests, unless the call asks for names, which takes the role
write and is recorded by the caller. The digests are made with a random key, so they differ between processes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from ratebound.admin.messages import CallError
from ratebound.calendar_period import zone_of
from ratebound.errors import StorageError
from ratebound.ledger import Ledger
from ratebound.ledger.periods import Period
from ratebound.ledger.spans import read_instant, spans_between
from ratebound.observe.client import naming

Arguments = Mapping[str, Any]
Answer = dict[str, Any]

NO_LEDGER = (
    "There is no usage ledger. In the service set RATEBOUND_LEDGER, for example sqlite:///usage.db; in an application"
    " give the dashboard one: limits.dashboard(auth=…, ledger=Ledger(…))."
)
RETRY = {"Retry-After": "1"}
USUAL = timedelta(days=30)  # of a question without a beginning
FRESH = 10.0  # seconds for which an answer is kept
MOST_KEPT = 100  # answers
MOST_SPANS = 10_000
TOO_MANY = f"these are more than {MOST_SPANS} spans of time: ask for longer ones, or for less time"
NUMBERS = ("units", "allowed", "denied", "overage")
CALLED = ("usage_history", "ledger_totals", "ledger_top", "ledger_denials", "ledger_overage", "ledger_audit")


class LedgerCalls:
    """Answers the calls about a ledger. `answer` blocks its thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._digest = naming(None)
        self._kept: dict[tuple[Any, ...], tuple[float, Answer]] = {}  # by question: when it was asked, and the answer
        self._methods: dict[str, Callable[[Arguments], Answer]] = {
            "usage_history": self._usage,
            "ledger_totals": self._totals,
            "ledger_top": self._top,
            "ledger_denials": self._denials,
            "ledger_overage": self._overage,
            "ledger_audit": self._audit,
        }

    def answer(self, name: str, arguments: Arguments) -> Answer:
        """Return the answer of a call for JSON. Raises CallError.

        An answer about a time with a given end is kept for some seconds, so that many open pages cost as much as one.
        """
        if "until" not in arguments or arguments.get("names"):
            return self._asked(name, arguments)
        question = (name, *sorted(arguments.items()))
        kept = self._kept.get(question)
        if kept is None or time.monotonic() - kept[0] > FRESH:
            if len(self._kept) >= MOST_KEPT:
                self._kept = {}
            kept = self._kept[question] = time.monotonic(), self._asked(name, arguments)
        return kept[1]

    def _asked(self, name: str, arguments: Arguments) -> Answer:
        try:
            return self._methods[name](arguments)
        except StorageError as error:
            raise CallError(503, f"The ledger could not answer: {error}", headers=RETRY) from None
        except ValueError as error:
            field = "client" if "client" in arguments else "since"
            raise CallError(422, str(error), [(field, str(error))]) from None

    def _usage(self, arguments: Arguments) -> Answer:
        since, until, by, zone = _time_asked(arguments)
        _check_spans(since, until, by, zone)
        rows = self._ledger.usage(
            arguments["client"], by=by, since=since, until=until, rule=arguments.get("rule"), zone=zone
        )
        found = [{"at": _instant(row.begin), "rule": row.rule, **_numbers(row)} for row in rows]
        return {"by": by, "zone": zone, "since": _instant(since), "until": _instant(until), "usage": found}

    def _totals(self, arguments: Arguments) -> Answer:
        since, until, by, zone = _time_asked(arguments)
        spans = _check_spans(since, until, by, zone)
        sums: dict[datetime, dict[str, int]] = {span: dict.fromkeys(NUMBERS, 0) for span in spans}
        for row in self._ledger.totals(by=by, since=since, until=until, zone=zone):
            into = sums.setdefault(row.begin.astimezone(UTC), dict.fromkeys(NUMBERS, 0))
            for name, number in _numbers(row).items():
                into[name] += number
        found = [{"at": _instant(at), **numbers} for at, numbers in sorted(sums.items())]
        return {"by": by, "zone": zone, "since": _instant(since), "until": _instant(until), "totals": found}

    def _top(self, arguments: Arguments) -> Answer:
        since, until, _, _ = _time_asked({**arguments, "by": "day"})
        by, most = arguments.get("by", "units"), arguments.get("most", 20)
        rows = self._ledger.top(since=since, until=until, by=by, most=most)
        return {"top": [{**self._client(row.client, arguments), "rule": row.rule, **_numbers(row)} for row in rows]}

    def _denials(self, arguments: Arguments) -> Answer:
        since, until, _, _ = _time_asked(arguments)
        rows = sorted(
            self._ledger.denials(since=since, until=until), key=lambda row: (-row.rate, -row.denied, row.rule)
        )
        return {"denials": [row._asdict() for row in rows]}

    def _overage(self, arguments: Arguments) -> Answer:
        zone = arguments.get("zone", "UTC")
        month = arguments.get("month") or f"{datetime.now(zone_of(zone)):%Y-%m}"
        rows = self._ledger.overage(month, zone=zone)
        found = [
            {**self._client(row.client, arguments), "rule": row.rule, "units": row.units, "overage": row.overage}
            for row in rows
        ]
        return {"month": month, "zone": zone, "overage": found}

    def _audit(self, arguments: Arguments) -> Answer:
        since, until, _, _ = _time_asked(arguments)
        rows = self._ledger.audit(
            since=since if "since" in arguments else None,
            until=until if "until" in arguments else None,
            most=arguments.get("most", 100),
        )
        names = ("at", "by", "action", "target", "detail")
        return {"changes": [{name: _plain(getattr(row, name)) for name in names} for row in rows]}

    def _client(self, client: str, arguments: Arguments) -> Answer:
        """Return a client for JSON: its digest, and its name if that was asked for and the ledger keeps names."""
        if not self._ledger.keeps_names:
            return {"client": client}
        shown = {"client": self._digest(client)}
        return {**shown, "name": client} if arguments.get("names") else shown


def many_clients(many: int) -> str:
    """Return a number of clients in words for the audit log."""
    return f"{many} client{'' if many == 1 else 's'}"


def names_shown(answer: Answer) -> tuple[str, str, str]:
    """Return the entry of the log of changes for an answer that has names: its action, target and detail."""
    rows = answer.get("top") or answer.get("overage") or ()
    many = len({row["client"] for row in rows})
    return "show names", "", f"{many_clients(many)} of the ledger"


def _time_asked(arguments: Arguments) -> tuple[datetime, datetime, Period, str]:
    """Return the time that a call asks for, the length of its spans, and their zone. Raises ValueError."""
    zone = arguments.get("zone", "UTC")
    until = read_instant(arguments["until"], zone) if "until" in arguments else datetime.now(UTC)
    since = read_instant(arguments["since"], zone) if "since" in arguments else until - USUAL
    if since >= until:
        raise ValueError(f"since must be before until, and {_instant(since)} is not before {_instant(until)}")
    return since, until, arguments.get("by", "day"), zone


def _check_spans(since: datetime, until: datetime, by: str, zone: str) -> Sequence[datetime]:
    """Return the beginnings of all spans, none for buckets of the ledger. Raises ValueError if there are too many."""
    if by == "bucket":
        return []
    found = list(islice(spans_between(since, until, by, zone), MOST_SPANS + 1))
    if len(found) > MOST_SPANS:
        raise ValueError(TOO_MANY)
    return found


def _numbers(row: Any) -> dict[str, int]:
    return {name: getattr(row, name) for name in NUMBERS}


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    return _instant(value) if isinstance(value, datetime) else value
