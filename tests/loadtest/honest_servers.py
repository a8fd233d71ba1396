"""Servers without a network: our kernels decide at instants that the test draws, and the test sees only spans."""

from collections.abc import Sequence

from ratebound.kernels.packing import unpacked
from ratebound.limit import Limit
from ratebound.loadtest.bounds import ClientSpans, Span


def decide(limits: Sequence[Limit], instants: Sequence[int], origin: int = 0) -> list[bool]:
    """What an honest server answers at these instants, in their order; its clock shows `origin` more."""
    states = [unpacked(limit.numbers, None) for limit in limits]
    answers = []
    for now in instants:
        fits = all(state.fits(limit.numbers, now + origin, 1) for limit, state in zip(limits, states, strict=True))
        if fits:
            for limit, state in zip(limits, states, strict=True):
                state.spend(limit.numbers, now + origin, 1, None, 0)
        answers.append(fits)
    return answers


def decide_with_begun_windows(count: int, period: int, instants: Sequence[int]) -> list[bool]:
    """What a server answers whose windows begin with a request, like one that uses INCR and EXPIRE of Redis."""
    answers, until, used = [], -1, 0
    for now in instants:
        if now >= until:
            until, used = now + period, 0
        answers.append(used < count)
        used += answers[-1]
    return answers


def seen(spans: Sequence[Span], answers: Sequence[bool]) -> ClientSpans:
    pairs = list(zip(spans, answers, strict=True))
    return ClientSpans([span for span, granted in pairs if granted], [span for span, granted in pairs if not granted])
