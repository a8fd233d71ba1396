"""Slots that callers hold over HTTP are in the figures of their worker."""

from collections import Counter
from typing import Any

from ratebound.limit import Ask
from ratebound.notation import parse_limit
from ratebound.service import leased_slots
from ratebound.service.leased_slots import LeasedSlots

POLICY = """
rules:
  - {name: export, limits: 2 concurrent for 30 seconds}
"""


class Seconds:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def slot(id: int, name: str = "export") -> Ask:
    return "user:1", (parse_limit(f"2 concurrent for 30 seconds as {name}"),), 1, None, [id]


def held(slots: LeasedSlots) -> dict[str, int]:
    found: Counter[str] = Counter()
    slots.count(found)
    return dict(found)


def test_slots_are_held_until_they_are_released_or_end() -> None:
    clock = Seconds()
    slots = LeasedSlots(clock)
    slots.take([slot(1), slot(2, "report")])
    clock.now = 20.0
    slots.take([slot(3)])
    assert held(slots) == {"export": 2, "report": 1}
    slots.release([slot(1)])
    slots.release([slot(1)])
    assert held(slots) == {"export": 1, "report": 1}
    clock.now = 31.0
    assert held(slots) == {"export": 1}
    clock.now = 51.0
    assert held(slots) == {}


def test_the_number_of_slots_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(leased_slots, "MOST", 3)
    clock = Seconds()
    slots = LeasedSlots(clock)
    slots.take([slot(id) for id in range(5)])
    assert held(slots) == {"export": 3}
    clock.now = 31.0
    slots.take([slot(9)])
    assert held(slots) == {"export": 1}
