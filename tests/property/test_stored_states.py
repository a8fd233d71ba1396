"""States that are kept as bytes decide like the kernels over a dict, to the unit. Every storage of bytes uses this."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit, StorageError
from ratebound.clock import Clock
from ratebound.kernels.packing import packed, unpacked
from ratebound.limit import Group, Mode
from ratebound.notation import parse_limit
from ratebound.outcome import Row
from ratebound.storage import HeldSlot
from ratebound.storage.stored_states import StateNames, StoredGroup, holders_in, state_from_bytes, state_to_bytes
from ratebound.testing import FakeClock
from tests.property.histories import check_every_kind, check_history, check_long_log, check_slots, penalties
from tests.property.strategies import limits, quotas, slot_limits, starts, value_limits


class BytesInADict:
    """The smallest storage of states as bytes: a dict of them."""

    def __init__(self, clock: Clock, kept: dict[bytes, bytes]) -> None:
        self._clock = clock
        self._kept = kept
        self._names = StateNames("a secret")

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        answers: list[Sequence[Row]] = []
        for group in groups:
            rows, changes = StoredGroup(group, self._names).decide(self._kept, mode, self._clock())
            for name, data, _ in changes:
                if data:
                    self._kept[name] = data
                else:
                    self._kept.pop(name, None)
            answers.append(rows)
        return answers

    def reset(self, group: Group) -> None:
        for name in StoredGroup(group, self._names).names:
            self._kept.pop(name, None)

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        data = self._kept.get(self._names.of(key, limit.numbers), b"")
        return holders_in(limit.numbers, data, self._clock())

    def close(self) -> None:
        pass


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(st.one_of(limits(), quotas(), slot_limits(), value_limits(), penalties()), min_size=1, max_size=4),
    starts(),
    st.data(),
)
def test_any_history_is_answered_alike(pool: list[Limit], start: int, data: st.DataObject) -> None:
    clock, kept = FakeClock(start), dict[bytes, bytes]()
    check_history(BytesInADict(clock, kept), BytesInADict(clock, kept), clock, pool, data)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_history_is_answered_alike(seed: int, clock: FakeClock) -> None:
    check_slots(BytesInADict(clock, {}), clock, seed)
    check_every_kind(BytesInADict(clock, {}), clock, seed)
    check_long_log(BytesInADict(clock, {}), clock, seed, 3)


def test_a_group_names_each_state_once_and_in_one_order() -> None:
    minute, hour = parse_limit("5/minute"), parse_limit("50/hour")
    names = StateNames()
    one = StoredGroup([("a", (minute, hour), 1, None, None), ("b", (minute,), 1, None, None)], names)
    other = StoredGroup(
        [("b", (minute,), 1, None, None), ("a", (hour, minute), 1, None, None), ("b", (minute,), 2, None, None)], names
    )
    assert one.names == other.names == sorted(set(one.names))
    assert len(one.names) == 3
    assert {len(name) for name in one.names} == {32}


def test_another_secret_gives_other_names() -> None:
    limit = parse_limit("5/minute").numbers
    assert len({StateNames(secret).of("a", limit) for secret in ("", "one", b"two")}) == 3
    with pytest.raises(ValueError, match="secret must have at most 64 bytes"):
        StateNames("x" * 65)


def test_a_denial_and_a_peek_write_nothing(clock: FakeClock) -> None:
    limit = parse_limit("1/minute")
    stored = StoredGroup([("a", (limit,), 1, None, None)], StateNames())
    _, (spent,) = stored.decide({}, "spend", clock())
    assert spent.expires > clock()
    assert stored.decide({}, "peek", clock())[1] == []
    (denied,), changes = stored.decide({spent.name: spent.data}, "spend", clock())
    assert (denied[0], changes) == (False, [])


@pytest.mark.parametrize("data", [b"\x02" + bytes(24), b"\x01" + bytes(7), b"\x01" + bytes(8), b"\x01"])
def test_bytes_of_no_state_are_an_error_of_this_state_alone(data: bytes) -> None:
    with pytest.raises(StorageError, match="format 2|damaged|format 1") as raised:
        state_from_bytes(parse_limit("5/minute fixed-window").numbers, data)
    assert (raised.value.undone, raised.value.outage) == (True, False)


@given(limits(), st.integers(-(2**40), 2**50))
def test_a_state_is_read_as_it_was_written(limit: Limit, now: int) -> None:
    state = unpacked(limit.numbers, None)
    assert state_to_bytes(limit.numbers, state) == b""
    for step in range(3):
        state.spend(limit.numbers, now + step, 1, None, 0)
        read = state_from_bytes(limit.numbers, state_to_bytes(limit.numbers, state))
        assert packed(limit.numbers, read) == packed(limit.numbers, state)
