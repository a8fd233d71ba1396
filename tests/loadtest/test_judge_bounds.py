"""The bounds of what a limit can have granted: never against an honest server, and exact if instants are known."""

import tracemalloc

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratebound.kernels.packing import unpacked
from ratebound.limit import ALGORITHMS, BUCKETS, Algorithm, Limit
from ratebound.loadtest.bounds import ClientSpans, Span, contradictions
from tests.loadtest.honest_servers import decide, decide_with_begun_windows, seen

SECOND = 1_000_000


@st.composite
def limits(draw: st.DrawFn, algorithms: tuple[Algorithm, ...] = ALGORITHMS) -> Limit:
    algorithm = draw(st.sampled_from(algorithms))
    count = draw(st.integers(1, 7))
    period = draw(st.sampled_from([10, 1000, 1003, SECOND]))
    burst = draw(st.integers(1, 9)) if algorithm in BUCKETS else count
    return Limit(count, period, burst, algorithm)


def drawn_instants(draw: st.DrawFn, period: int, least: int = 1) -> list[int]:
    """Instants in order: many close together, some far apart."""
    gaps = st.one_of(
        st.integers(0, 3), st.integers(0, max(period // 4, 1)), st.integers(0, period), st.integers(0, 3 * period)
    )
    now, instants = draw(st.integers(0, 2 * period)), []
    for gap in draw(st.lists(gaps, min_size=least, max_size=60)):
        instants.append(now)
        now += gap
    return instants


@settings(max_examples=400)
@given(st.data())
def test_an_honest_server_is_never_blamed(data: st.DataObject) -> None:
    together = data.draw(st.lists(limits(), min_size=1, max_size=2, unique_by=lambda limit: limit.scope))
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, together[0].period_us))())
    origin = data.draw(st.integers(0, 10 * SECOND))
    widths = st.one_of(st.integers(0, 3), st.integers(0, together[0].period_us))
    spans = [Span(now - data.draw(widths), now + data.draw(widths)) for now in instants]
    found = contradictions(together, seen(spans, decide(together, instants, origin)))
    assert not found.total or not found.settled, found
    if len(together) == 1 and together[0].algorithm in (*BUCKETS, "sliding-log"):
        assert not found.total
        assert found.at_most >= sum(decide(together, instants, origin))


@settings(max_examples=300)
@given(st.data())
def test_an_honest_server_is_not_blamed_for_unknown_answers(data: st.DataObject) -> None:
    limit = data.draw(limits())
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, limit.period_us))())
    answers = decide([limit], instants)
    lost = [data.draw(st.booleans()) for _ in instants]
    kept = [(Span(now, now), granted) for now, granted, gone in zip(instants, answers, lost, strict=True) if not gone]
    known = seen([span for span, _ in kept], [granted for _, granted in kept])
    unknown = [Span(now, now) for now, gone in zip(instants, lost, strict=True) if gone]
    found = contradictions([limit], known._replace(unknown=unknown))
    assert not found.total or not found.settled, found


@settings(max_examples=300)
@given(st.data())
def test_earlier_use_explains_refusals(data: st.DataObject) -> None:
    limit = data.draw(limits())
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, limit.period_us, least=2))())
    answers = decide([limit], instants)
    first = data.draw(st.integers(1, len(instants) - 1))
    spans = [Span(now, now) for now in instants]
    found = contradictions([limit], seen(spans[first:], answers[first:])._replace(used_before=limit.burst))
    assert not found.total or not found.settled, found


@settings(max_examples=300)
@given(st.data())
def test_one_grant_too_many_is_caught_if_the_instants_are_known(data: st.DataObject) -> None:
    limit = data.draw(limits((*BUCKETS, "sliding-log", "sliding-counter")))
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, limit.period_us))())
    answers = decide([limit], instants)
    refused = [place for place, granted in enumerate(answers) if not granted]
    assume(refused)
    place = data.draw(st.sampled_from(refused))
    answers[place] = True
    spans = [Span(now, now) for now in instants[: place + 1]]
    found = contradictions([limit], seen(spans, answers[: place + 1]))
    assert [one.span for one in found.surplus] == [spans[place]]
    assert found.at_most == len(found.surplus and [one for one in answers[: place + 1] if one]) - 1


@settings(max_examples=300)
@given(st.data())
def test_one_refusal_too_many_is_caught_if_the_instants_are_known(data: st.DataObject) -> None:
    limit = data.draw(limits((*BUCKETS, "sliding-log", "sliding-counter")))
    instants = sorted(set(data.draw(st.composite(lambda draw: drawn_instants(draw, limit.period_us))())))
    answers = decide([limit], instants)
    granted = [place for place, one in enumerate(answers) if one]
    place = data.draw(st.sampled_from(granted))
    answers[place] = False
    spans = [Span(now, now) for now in instants[: place + 1]]
    found = contradictions([limit], seen(spans, answers[: place + 1]))
    assert not found.surplus
    if found.longest_wait is not None:
        assert limit.algorithm == "leaky-bucket"  # a server may refuse to let a request wait: see below
    elif limit.algorithm != "sliding-counter" or place:  # its windows begin with the first grant
        assert [one.span for one in found.unfounded] == [spans[place]]


@settings(max_examples=300)
@given(st.data())
def test_a_queue_may_refuse_requests_that_would_wait_too_long(data: st.DataObject) -> None:
    limit = data.draw(limits(("leaky-bucket",)))
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, limit.period_us))())
    longest = data.draw(st.integers(0, limit.refill_us))
    state = unpacked(limit.numbers, None)
    patience = longest if longest < limit.numbers.room else None
    answers = [bool(state.spend(limit.numbers, now, 1, patience, 0)[0]) for now in instants]
    widths = st.one_of(st.just(0), st.integers(0, limit.period_us))
    spans = [Span(now - data.draw(widths), now + data.draw(widths)) for now in instants]
    assert not contradictions([limit], seen(spans, answers)).total


@pytest.mark.parametrize(
    ("answers", "unfounded", "longest"),
    [
        ([True, True, True, False], 0, 26),  # it would wait 27, and the one before waits 18
        ([True, False, True, False, False], 0, 8),
        ([True, False, True, True, True], 1, None),  # requests after it wait longer
        ([False, True, True, True], 1, None),  # it had nothing to wait for
    ],
)
def test_a_queue_refuses_no_request_that_waits_less_than_others(
    answers: list[bool], unfounded: int, longest: int | None
) -> None:
    limit = Limit(1, 10, 9, "leaky-bucket")
    found = contradictions([limit], seen([Span(k, k) for k in range(len(answers))], answers))
    assert not found.surplus
    assert (len(found.unfounded), found.longest_wait) == (unfounded, longest)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_fixed_window_is_judged_at_any_alignment(extra: int) -> None:
    limit = Limit(3, 100, 0, "fixed-window")
    instants = [30, 40, 50, 60, 70, 80, 90, 130, 140, 150, 160, 190]
    answers = decide([limit], instants, origin=50)  # windows begin at 50 and 150
    assert answers == [True, True, True, True, True, False, False, False, False, True, True, True]
    answers[5] = bool(extra)
    found = contradictions([limit], seen([Span(now, now) for now in instants], answers))
    assert len(found.surplus) == extra


@settings(max_examples=300)
@given(st.data())
def test_a_server_whose_windows_begin_with_a_request_is_never_blamed(data: st.DataObject) -> None:
    limit = data.draw(limits(("fixed-window",)))
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, limit.period_us))())
    first = data.draw(st.integers(0, len(instants) - 1))
    answers = decide_with_begun_windows(limit.count, limit.period_us, instants)[first:]
    widths = st.one_of(st.integers(0, 3), st.integers(0, limit.period_us))
    earlier = instants[first - 1] if first else -1  # what was used before was used before the test
    spans = [Span(max(now - data.draw(widths), earlier), now + data.draw(widths)) for now in instants[first:]]
    lost = [data.draw(st.integers(0, 9)) == 0 for _ in spans]
    kept = [(span, answer) for span, answer, gone in zip(spans, answers, lost, strict=True) if not gone]
    shown = seen([span for span, _ in kept], [answer for _, answer in kept])
    unknown = [span for span, gone in zip(spans, lost, strict=True) if gone]
    found = contradictions([limit], shown._replace(unknown=unknown, used_before=limit.burst if first else 0))
    assert not found.total or not found.settled, found


def test_windows_that_begin_with_a_request_lie_at_no_alignment() -> None:
    limit = Limit(2, 100, 0, "fixed-window")
    instants = range(0, 2000, 37)
    answers = decide_with_begun_windows(2, 100, instants)
    assert answers != decide([limit], instants)
    spans = [Span(now - 2, now + 2) for now in instants]
    assert not contradictions([limit], seen(spans, answers)).total
    answers[answers.index(False)] = True
    assert contradictions([limit], seen(spans, answers)).total


@settings(max_examples=300)
@given(st.data())
def test_fixed_windows_are_blamed_if_nothing_explains_their_answers(data: st.DataObject) -> None:
    """Every alignment is tried, and windows that begin with a request."""
    count, period = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([10, 17]))
    limit = Limit(count, period, 0, "fixed-window")
    instants = data.draw(st.composite(lambda draw: drawn_instants(draw, period))())
    answers = decide_with_begun_windows(count, period, instants)
    if data.draw(st.booleans()):
        answers = decide([limit], instants, data.draw(st.integers(0, period)))
    place = data.draw(st.integers(0, len(answers) - 1))
    answers[place] = answers[place] ^ data.draw(st.booleans())
    possible = [decide([limit], instants, origin) for origin in range(period)]
    possible.append(decide_with_begun_windows(count, period, instants))
    found = contradictions([limit], seen([Span(now, now) for now in instants], answers))
    if answers[0]:  # else nothing says when the windows begin
        assert bool(found.total) == (answers not in possible)


def test_units_that_were_used_before_explain_no_more_refusals_than_they_are() -> None:
    limit = Limit(5, 100, 0, "sliding-log")
    spans = [Span(now, now) for now in range(6)]
    for used in range(4):
        shown = seen(spans, [True, True, True, False, False, False])._replace(used_before=used)
        assert len(contradictions([limit], shown).unfounded) == max(2 - used, 0)


def test_trials_of_alignments_take_no_memory_together() -> None:
    """The server refuses now and then although there is room, so every alignment is tried to its end."""
    limit = Limit(5, 1000, 0, "fixed-window")
    instants = range(0, 60_000, 37)
    answers = [granted and k % 7 > 0 for k, granted in enumerate(decide([limit], instants))]
    shown = seen([Span(now - 20, now + 20) for now in instants], answers)
    tracemalloc.start()
    try:
        assert contradictions([limit], shown).unfounded
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_more_than_two_windows_hold_is_too_much_at_every_alignment() -> None:
    limit = Limit(3, 100, 0, "fixed-window")
    spans = [Span(now, now) for now in range(7)]
    found = contradictions([limit], ClientSpans(spans, []))
    assert [one.span for one in found.surplus] == [Span(6, 6)]


def test_grants_within_wide_spans_are_counted_together() -> None:
    limit = Limit(100, 60 * SECOND, 0, "sliding-log")
    spans = [Span(0, SECOND)] * 101
    assert not contradictions([limit], ClientSpans(spans[:100], [])).total
    found = contradictions([limit], ClientSpans(spans, []))
    assert [(one.span, one.free_at) for one in found.surplus] == [(Span(0, SECOND), 60 * SECOND)]
    assert found.at_most == 100


def test_a_grant_must_fit_every_limit_and_a_refusal_one() -> None:
    second, minute = Limit(2, SECOND, 0, "sliding-log"), Limit(3, 60 * SECOND, 0, "sliding-log")
    instants = [0, 1, 2, SECOND, SECOND + 1]
    assert decide([second, minute], instants) == [True, True, False, True, False]
    honest = seen([Span(now, now) for now in instants], [True, True, False, True, False])
    assert not contradictions([second, minute], honest).total
    assert len(contradictions([second], honest).unfounded) == 1
    assert len(contradictions([minute], honest).unfounded) == 1
