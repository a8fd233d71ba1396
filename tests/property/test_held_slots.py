"""Slots against a plain list of who holds what until when, in any order of taking, waiting, renewing and releasing."""

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Decision, RateLimited
from ratebound.clock import SECOND
from ratebound.holding import _renew, thread_renewer
from ratebound.slots import slots_of
from ratebound.testing import FakeClock
from tests.limiters import limiter_of

Operation = tuple[str, int]
UNITS = 1_000_000

operations = st.lists(
    st.tuples(st.sampled_from(["hit", "wait", "acquire", "exit", "release", "renew"]), st.integers(0, 120))
    | st.tuples(st.sampled_from(["advance", "reset"]), st.integers(0, 40)),
    max_size=40,
)


class Model:
    """Slots as a dict from id to expiry."""

    def __init__(self, count: int, lease: int) -> None:
        self.count = count
        self.lease = lease * SECOND
        self.held: dict[int, int] = {}

    def live(self, now: int) -> dict[int, int]:
        return {slot: expiry for slot, expiry in self.held.items() if expiry > now}

    def free_at(self, now: int) -> int:
        """Return the first instant at which a slot is free if nobody releases or renews one."""
        expiries = sorted(self.live(now).values())
        return now if len(expiries) < self.count else expiries[len(expiries) - self.count]


def id_of(decision: Decision) -> int:
    ((*_, extras),) = slots_of(decision.asks, 1)
    assert extras is not None
    return extras[0][0]


class Run:
    """A limiter, the model, and the operations on both."""

    def __init__(self, count: int, lease: int) -> None:
        self.clock = FakeClock()
        self.model = Model(count, lease)
        text = f"{count} concurrent for {lease} seconds; {UNITS}/year fixed-window"
        self.limiter = limiter_of(text, self.clock)
        self.granted = 0
        self.bare: list[Decision] = []
        self.contexts: list[tuple[ExitStack, Decision]] = []

    def taken(self, decision: Decision) -> None:
        self.granted += 1
        self.model.held[id_of(decision)] = self.clock.now + self.model.lease

    def hit(self, _: int) -> None:
        free = self.model.free_at(self.clock.now) == self.clock.now
        decision = self.limiter.hit("k")
        assert decision.allowed == free
        if decision:
            self.bare.append(decision)
            self.taken(decision)

    def wait(self, timeout: int) -> None:
        begin, free_at = self.clock.now, self.model.free_at(self.clock.now)
        try:
            decision = self.limiter.wait("k", timeout=timeout)
        except RateLimited:
            assert free_at > begin + timeout * SECOND
            assert self.clock.now == begin + timeout * SECOND
        else:
            assert self.clock.now == free_at <= begin + timeout * SECOND
            self.bare.append(decision)
            self.taken(decision)

    def acquire(self, _: int) -> None:
        stack = ExitStack()
        free = self.model.free_at(self.clock.now) == self.clock.now
        try:
            decision = stack.enter_context(self.limiter.acquire("k", timeout=0))
        except RateLimited:
            assert not free
        else:
            assert free
            self.contexts.append((stack, decision))
            self.taken(decision)

    def exit(self, which: int) -> None:
        if self.contexts:
            stack, decision = self.contexts.pop(which % len(self.contexts))
            stack.close()
            self.model.held.pop(id_of(decision), None)

    def release(self, which: int) -> None:
        """Also one that was released before, or has expired."""
        if self.bare:
            decision = self.bare[which % len(self.bare)]
            self.limiter.release(decision)
            self.model.held.pop(id_of(decision), None)

    def renew(self, _: int) -> None:
        batch = [held for held in thread_renewer.renewals._alive() if held.decider is self.limiter._decider]
        assert {id_of(held.decision) for held in batch} == {id_of(decision) for _, decision in self.contexts}
        if batch:
            _renew(batch)
        for _stack, decision in self.contexts:
            self.model.held[id_of(decision)] = self.clock.now + self.model.lease

    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    def reset(self, _: int) -> None:
        self.limiter.reset("k", limits=self.limiter.limits[0])
        self.model.held.clear()

    def check(self) -> None:
        live = self.model.live(self.clock.now)
        found = {held.id: round(held.expires_at.timestamp() * SECOND) for held in self.limiter.holders("k")}
        assert found == live
        assert self.limiter.peek("k").outcomes[1].remaining == UNITS - self.granted


@given(st.integers(1, 4), st.integers(60, 90), operations)  # so long that the thread renews nothing meanwhile
def test_slots_are_what_a_list_of_holders_says(count: int, lease: int, wanted: list[Operation]) -> None:
    run = Run(count, lease)
    try:
        for name, number in wanted:
            getattr(run, name)(number)
            run.check()
    finally:
        for stack, _ in run.contexts:
            stack.close()
    assert not [held for held in thread_renewer.renewals._alive() if held.decider is run.limiter._decider]
