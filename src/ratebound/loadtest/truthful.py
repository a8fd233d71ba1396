"""Check what a server says about its limits against what it does: Retry-After, remaining units, resets and policies.

Every check allows for requests at the same time: an answer contradicts another only if the order of the two decisions
is certain, and if no third request can be between them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ratebound.clock import SECOND
from ratebound.http.quota import Quota
from ratebound.kernels.packing import unpacked
from ratebound.limit import BUCKETS, Limit
from ratebound.loadtest.answer import Answer
from ratebound.loadtest.check import FAIL, PASS, UNKNOWN, LoadCheck

EXAMPLES = 3
NO_REFUSAL = "no request was refused"
GOT_ALL = (
    "the first answers say that units were used before the test, but the client got as many as if none were. Wait for"
    " one period, and test again: if they say so again, they tell too few"
)
NO_FIELDS = "the answers have no rate limit headers"
NOTHING_TO_COMPARE = "no granted request comes before another answer with what remains"


class ClientAnswers:
    """The answers of one client, in the order in which its requests were sent."""

    def __init__(self, client: int, answers: Sequence[Answer], refused: frozenset[int], tolerance: float) -> None:
        self.client = client
        self.answers = sorted(answers, key=lambda answer: answer.sent)
        self.refused = [answer for answer in self.answers if answer.status in refused]
        self.granted = [answer for answer in self.answers if 0 < answer.status < 500 and answer.status not in refused]
        spent = [answer for answer in self.answers if answer.status not in refused]  # or possibly so: errors
        self.tolerance = tolerance
        self._sent = [answer.sent for answer in self.answers]
        self._spent_sent = sorted(answer.sent for answer in spent)
        self._spent_done = sorted(answer.done if answer.status else float("inf") for answer in spent)
        self.granted_sent = sorted(answer.sent for answer in self.granted)
        self.granted_done = sorted(answer.done for answer in self.granted)

    def first_after(self, moment: float) -> Answer | None:
        """Return the first request that was sent at this time or later."""
        place = bisect_left(self._sent, moment + self.tolerance)
        return self.answers[place] if place < len(self.answers) else None

    def has_waiting(self, refused: Answer) -> bool:
        """Return True if a grant took longer than a refused request, all the time: it may wait in a queue that is full.

        A leaky bucket refuses requests that would wait too long, whatever is left of its burst.
        """
        return bisect_left(self.granted_sent, refused.sent) > bisect_right(self.granted_done, refused.done)

    def spent_between(self, begin: float, end: float) -> int:
        """Return how many requests may have been granted between two instants."""
        last = bisect_right(self._spent_sent, end + self.tolerance)
        return last - bisect_left(self._spent_done, begin - self.tolerance)


class _Findings(NamedTuple):
    """The findings of a check: examples of lies, and how many answers it looked at."""

    examples: list[str]
    checked: int
    lies: int


def truthful_checks(
    clients: Sequence[ClientAnswers], limits: Sequence[Limit], *, fresh: bool = True, got_all: bool = False
) -> list[LoadCheck]:
    """Return all checks of headers. `limits` are those that are known, not read from headers.

    `fresh` is True if the limits were not used before the test. `got_all` is True if headers say that they were, and a
    client got as much as if they were not.
    """
    return [
        _retry_after_sent(clients),
        _retry_after_passes(clients),
        _retry_after_needed(clients),
        _remaining_is_true(clients, limits, fresh=fresh, got_all=got_all),
        _reset_is_ahead(clients),
        _policy_is_constant(clients),
    ]


def _shown(client: ClientAnswers, answer: Answer) -> str:
    return f"client {client.client}, sent at {answer.sent:.3f} s (status {answer.status})"


def _check(name: str, found: _Findings, passed: str, failed: str, unknown: str) -> LoadCheck:
    if found.lies:
        return LoadCheck(name, FAIL, failed.format(lies=found.lies, checked=found.checked), tuple(found.examples))
    if not found.checked:
        return LoadCheck(name, UNKNOWN, unknown)
    return LoadCheck(name, PASS, passed.format(checked=found.checked))


def _gathered(lies: Iterator[str | None]) -> _Findings:
    """Count what a check yields for each answer that it looked at: None, or a lie in words."""
    examples: list[str] = []
    checked = many = 0
    for lie in lies:
        checked += 1
        if lie is not None:
            many += 1
            if len(examples) < EXAMPLES:
                examples.append(lie)
    return _Findings(examples, checked, many)


def _retry_after_sent(clients: Sequence[ClientAnswers]) -> LoadCheck:
    def lies() -> Iterator[str | None]:
        for client in clients:
            for answer in client.refused:
                yield _shown(client, answer) if answer.retry_after is None else None

    return _check(
        "Refusals have Retry-After",
        _gathered(lies()),
        "all {checked} refusals",
        "{lies} of {checked} refusals have none",
        NO_REFUSAL,
    )


def _retry_after_passes(clients: Sequence[ClientAnswers]) -> LoadCheck:
    """Check that the first request after the wait was granted, unless another request was granted since."""

    def lies() -> Iterator[str | None]:
        for client in clients:
            for answer in client.refused:
                if answer.retry_after is None:
                    continue
                later = client.first_after(answer.done + answer.retry_after)
                if later is None or not later.status:
                    continue
                if later.status == answer.status and not client.spent_between(answer.sent, later.done):
                    yield (
                        f"{_shown(client, answer)} was told {answer.retry_after:g} s; refused again at"
                        f" {later.sent:.3f} s, with nothing granted since"
                    )
                else:
                    yield None

    return _check(
        "Retry-After is long enough",
        _gathered(lies()),
        "{checked} refusals were followed by a request after their wait, and none contradicts it",
        "{lies} of {checked} refused clients obeyed and were refused again",
        "no request was sent after a Retry-After had passed: test for longer, or with --probe-within 60s",
    )


def _retry_after_needed(clients: Sequence[ClientAnswers]) -> LoadCheck:
    """Check that nothing was granted in the first half of the wait. Waits are whole seconds, rounded up."""

    def lies() -> Iterator[str | None]:
        for client in clients:
            for answer in client.refused:
                wait = answer.retry_after
                if wait is None or wait <= 1:
                    continue
                early = answer.sent + min(wait / 2, wait - 1) - client.tolerance
                place = bisect_right(client.granted_sent, answer.done)
                if place == len(client.granted):
                    continue
                grant = client.granted[place]
                if grant.done < early:
                    yield f"{_shown(client, answer)} was told {wait:g} s; granted at {grant.done:.3f} s already"
                else:
                    yield None

    return _check(
        "Retry-After is not too long",
        _gathered(lies()),
        "none of {checked} refused clients was granted before half of its wait",
        "{lies} of {checked} refused clients were granted before half of their wait",
        "no wait above 1 s was followed by a grant",
    )


def _told(answer: Answer) -> Iterator[Quota]:
    return (quota for quota in answer.quotas if quota.remaining is not None and quota.unit == "requests")


def _remaining_is_true(
    clients: Sequence[ClientAnswers], limits: Sequence[Limit], *, fresh: bool, got_all: bool
) -> LoadCheck:
    def lies() -> Iterator[str | None]:
        for client in clients:
            if not any(limit.algorithm == "leaky-bucket" for limit in limits):  # it may refuse to hold a request back
                yield from _refused_with_some_left(client)
            if fresh:
                yield from _too_little_left(client)
            if fresh and len(limits) == 1:
                yield from _too_much_left(client, limits[0])

    check = _check(
        "The remaining units are true",
        _gathered(lies()),
        "{checked} comparisons with what was granted",
        "{lies} of {checked} comparisons contradict what was granted",
        NOTHING_TO_COMPARE if any(any(_told(answer)) for client in clients for answer in client.answers) else NO_FIELDS,
    )
    return check._replace(outcome=UNKNOWN, why=GOT_ALL) if got_all and check.outcome == PASS else check


def _refused_with_some_left(client: ClientAnswers) -> Iterator[str | None]:
    """Compare each refusal with the last answer before it: what was left then cannot be gone if less was granted."""
    told = sorted(
        (answer.done, answer.sent, min(quota.remaining or 0 for quota in _told(answer)))
        for answer in client.granted
        if any(_told(answer))
    )
    dones = [done for done, _, _ in told]
    for answer in client.refused:
        place = bisect_left(dones, answer.sent - client.tolerance)
        if not place:
            continue
        done, sent, left = told[place - 1]
        if left < 1 or client.has_waiting(answer):
            yield None
        # The answer itself is among those that may be granted in between
        elif client.spent_between(sent, answer.done) - 1 < left:
            yield f"{_shown(client, answer)} was refused, but {left} were left at {done:.3f} s, and fewer granted since"
        else:
            yield None


def _too_little_left(client: ClientAnswers) -> Iterator[str | None]:
    """Compare what remains with all grants since the beginning: of a fresh limit no more can be gone."""
    for answer in client.granted:
        for quota in _told(answer):
            if quota.limit is None or quota.remaining is None:
                continue
            spent = client.spent_between(float("-inf"), answer.done)
            if quota.remaining < quota.limit - spent:
                told = f"{quota.remaining} of {quota.limit} are left"
                yield f"{_shown(client, answer)} was told {told}, after at most {spent} grants"
            else:
                yield None


def _too_much_left(client: ClientAnswers, limit: Limit) -> Iterator[str | None]:
    """Compare what remains with what the kernel leaves after all grants that certainly came before, made early."""
    if limit.algorithm not in (*BUCKETS, "sliding-log"):  # where windows begin is not known
        return
    state, spent = unpacked(limit.numbers, None), 0
    for answer in client.granted:
        before = bisect_left(client.granted_done, answer.sent - client.tolerance)
        for sent in client.granted_sent[spent:before]:
            state.force(limit.numbers, round((sent - client.tolerance) * SECOND), 1, None)
        spent = max(spent, before)
        for quota in _told(answer):
            if quota.limit != limit.burst:
                continue
            left, _ = state.standing(limit.numbers, round((answer.done + client.tolerance) * SECOND))
            lie = (quota.remaining or 0) > max(left - 1, 0)
            yield (
                f"{_shown(client, answer)} was told {quota.remaining} are left; at most {max(left - 1, 0)} can be"
                if lie
                else None
            )


def _reset_is_ahead(clients: Sequence[ClientAnswers]) -> LoadCheck:
    def lies() -> Iterator[str | None]:
        for client in clients:
            for answer in client.refused:
                for quota in _told(answer):
                    if quota.remaining == 0 and quota.reset_after is not None:
                        yield _shown(client, answer) if quota.reset_after <= 0 else None

    return _check(
        "Resets are in the future",
        _gathered(lies()),
        "all {checked} refusals that name one",
        "{lies} of {checked} refusals name a reset that has passed",
        "no refusal names a reset",
    )


def _policy_is_constant(clients: Sequence[ClientAnswers]) -> LoadCheck:
    """Check that the same name always has the same limit and window for one client."""

    def lies() -> Iterator[str | None]:
        for client in clients:
            known: dict[str, tuple[int | None, int | None]] = {}
            for answer in client.answers:
                for quota in answer.quotas:
                    if quota.limit is None:
                        continue
                    first = known.setdefault(quota.name, (quota.limit, quota.window))
                    if first == (quota.limit, quota.window):
                        yield None
                    else:
                        yield (
                            f"{_shown(client, answer)} was told {quota.limit} per {quota.window} s,"
                            f" before that {first[0]} per {first[1]} s"
                        )

    return _check(
        "The policy is constant",
        _gathered(lies()),
        "the same limits in all answers",
        "{lies} of {checked} answers name another limit than before",
        NO_FIELDS,
    )
