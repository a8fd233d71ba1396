"""Everything that changes a zone: how it is prepared, and what is done then."""

from collections.abc import Callable
from typing import NamedTuple

from ratebound import Limit, Limiter, parse_limit
from ratebound.limit import ALGORITHMS, NOT_GIVEN, STRIKE, Algorithm, Ask, Extra, Mode
from ratebound.outcome import Row
from ratebound.storage.shared_memory.layout import BUCKET, HEAD, HEADER, SHARDS, Geometry
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import open_zone
from ratebound.storage.shared_memory.zone_states import ZoneStates
from ratebound.testing import FakeClock

SMALL = HEADER + SHARDS * (HEAD + 12_200)  # bytes of a zone with two buckets and 31 blocks in each shard
MINUTE = 60_000_000
SLOTS = parse_limit("100 concurrent")
VALUES = parse_limit("100 distinct account/hour")
LOG = Limit(500, MINUTE, 0, "sliding-log")
OTHER_LOG = Limit(400, 2 * MINUTE, 0, "sliding-log")
PENALTY = Limit(2, 3600 * 1_000_000, 0, "penalty", "guessing", blocks_us=(MINUTE,), forget_us=60 * MINUTE)
REFUNDED = [Limit(9, MINUTE, 0, "sliding-log"), Limit(9, MINUTE, 0, "sliding-counter"), Limit(9, MINUTE, 0, "gcra")]
ONCE = Limit(1, MINUTE, 0, "fixed-window")


class Scene:
    """A small zone, a clock that stands still, and short words for what tests do with them."""

    def __init__(self, directory: str, locks: str | None = None) -> None:
        self.clock = FakeClock()
        self.locks = locks
        self.storage = SharedMemoryStorage("scene", size=1 << 20, directory=directory, clock=self.clock, deadline=5)
        name = self.storage.zone_name._replace(name="small")
        self.storage.states = ZoneStates(lambda: open_zone(name, SMALL, self.clock, locks))
        self.zone = self.storage.states.zone
        self.cells = self.zone.cells
        self.geometry: Geometry = self.zone.owner.geometry  # type: ignore[attr-defined]

    def key(self, number: int, shard: int = 3) -> str:
        """Return a key that belongs to a shard, always another one for another number."""
        tried = 0
        while self.cells.shard_of(f"{number}-{tried}") != shard:
            tried += 1
        return f"{number}-{tried}"

    def evaluate(self, *asks: Ask, mode: Mode = "spend") -> list[Row]:
        """Decide a group."""
        return list(self.storage.evaluate([asks], mode)[0])

    def hit(self, key: str, limit: Limit, cost: int = 1) -> bool:
        """Hit as applications do."""
        return Limiter(limit, storage=self.storage, failure="raise").hit(key, cost=cost).allowed

    def spend(self, key: str, *limits: Limit, mode: Mode = "spend", cost: int = 1, extra: Extra = NOT_GIVEN) -> bool:
        """Decide one ask, in which every limit has the same extra."""
        rows = self.evaluate((key, limits, cost, None, [extra] * len(limits)), mode=mode)
        return all(row[0] for row in rows)

    def log(self, key: str, entries: int, limit: Limit = LOG) -> None:
        """Spend so often, each time at another instant."""
        for _ in range(entries):
            self.clock.now += 1_000
            assert self.spend(key, limit)


def slot(number: int) -> Extra:
    """Return the extra that names a slot, or a value."""
    return (number, 0, 0, 0)


class Operation(NamedTuple):
    """Something that changes a zone. `evicts` is True if it drops other states before it changes its own."""

    name: str
    prepare: Callable[[Scene], object]
    act: Callable[[Scene], object]
    evicts: bool = False


def nothing(scene: Scene) -> None:
    """Prepare nothing."""


def _hits(algorithm: Algorithm) -> list[Operation]:
    limit = Limit(5, MINUTE, 0, algorithm)

    def hit(scene: Scene) -> None:
        assert scene.hit(scene.key(1), limit)

    def force(scene: Scene) -> None:
        scene.spend(scene.key(1), limit, mode="force", cost=2)

    def refund(scene: Scene) -> None:
        scene.spend(scene.key(1), limit, mode="force", cost=-1)

    return [
        Operation(f"{algorithm}, new key", nothing, hit),
        Operation(f"{algorithm}, known key", hit, hit),
        Operation(f"{algorithm}, forced", hit, force),
        Operation(f"{algorithm}, refunded", hit, refund),
    ]


def _log_from(entries: int) -> Operation:
    def prepare(scene: Scene) -> None:
        scene.log(scene.key(1), entries)
        scene.log(scene.key(2), 40)
        scene.clock.now += 1_000

    return Operation(f"log of {entries} grows", prepare, lambda scene: scene.hit(scene.key(1), LOG))


def _log_to(entries: int, left: int) -> Operation:
    def prepare(scene: Scene) -> None:
        scene.log(scene.key(1), entries)
        scene.clock.now += MINUTE - 1_000 * left
        scene.spend(scene.key(2), LOG)

    return Operation(f"log of {entries} shrinks to {left}", prepare, lambda scene: scene.hit(scene.key(1), LOG))


def _several_limits(scene: Scene) -> None:
    assert scene.spend(
        scene.key(1), ONCE, LOG, Limit(9, MINUTE, 0, "token-bucket"), Limit(8, MINUTE, 0, "sliding-counter")
    )


def _before_several_limits(scene: Scene) -> None:
    scene.log(scene.key(1), 14)
    _hit_several_limits(scene)
    scene.clock.now += 1_000


def _hit_several_limits(scene: Scene) -> None:
    """Hit as applications do, with a log that grows by a block."""
    limits = [Limit(9, MINUTE, 0, algorithm) for algorithm in ("token-bucket", "fixed-window")]
    assert Limiter([*limits, LOG], storage=scene.storage, failure="raise").hit(scene.key(1)).allowed


def _in_shards(scene: Scene) -> None:
    """Spend in three shards: new and known states, in cells and in chains that grow."""
    asks: list[Ask] = [(scene.key(1, 9), (LOG, ONCE), 1, None, None), (scene.key(2, 2), (OTHER_LOG,), 1, None, None)]
    asks += [(scene.key(3, 14), (Limit(9, MINUTE, 0, "fixed-window"), LOG), 1, None, None)]
    asks += [(scene.key(4, 2), (ONCE,), 1, None, None)]
    assert all(row[0] for row in scene.evaluate(*asks))


def _before_shards(scene: Scene) -> None:
    scene.log(scene.key(1, 9), 14)
    scene.log(scene.key(2, 2), 29, OTHER_LOG)
    scene.log(scene.key(3, 14), 3)
    scene.clock.now += 1_000


def _fill(scene: Scene, limit: Limit) -> None:
    """Take every cell of a shard, apart from its bucket for overflow states."""
    number = 100
    while not all(_tags(scene)):
        number += 1
        scene.spend(scene.key(number), limit)


def _tags(scene: Scene) -> bytes:
    at = scene.cells.tags_at + 3 * scene.cells.cells
    return scene.cells.memory[at : at + scene.geometry.buckets * BUCKET]


def _fill_with_logs(scene: Scene) -> None:
    """Take every block of a shard."""
    for number in range(1, 5):
        scene.log(scene.key(number), 45)
    for number in range(5, 12):
        scene.log(scene.key(number), 3)
    scene.clock.now += 1_000


def _held(scene: Scene) -> None:
    scene.spend(scene.key(1), SLOTS, extra=slot(7))


def _many_held(scene: Scene) -> None:
    for number in range(20):
        scene.clock.now += 1
        assert scene.spend(scene.key(1), SLOTS, extra=slot(number))


def _release_with_others(scene: Scene) -> None:
    """Release a last slot, and refund in the same group, in two shards."""
    first: Ask = (scene.key(1), (SLOTS,), -1, None, [slot(7)])
    second: Ask = (scene.key(2, 11), (SLOTS, LOG), -1, None, [slot(8), NOT_GIVEN])
    scene.evaluate(first, second, mode="force")


def _before_release(scene: Scene) -> None:
    _held(scene)
    scene.spend(scene.key(2, 11), SLOTS, extra=slot(8))
    scene.log(scene.key(2, 11), 20)


def _strike(scene: Scene) -> None:
    assert not scene.spend(scene.key(1), ONCE, PENALTY)


def _once(scene: Scene) -> None:
    assert scene.spend(scene.key(1), ONCE, PENALTY)


def _twice(scene: Scene) -> None:
    _once(scene)
    _strike(scene)
    scene.clock.now += 2_000_000


def _step_back(scene: Scene) -> None:
    scene.hit(scene.key(1), ONCE)
    scene.clock.now -= 5 * MINUTE


OPERATIONS = [
    *[operation for algorithm in ALGORITHMS for operation in _hits(algorithm)],
    *[_log_from(entries) for entries in (2, 3, 14, 15, 29, 30, 45)],
    *[_log_to(entries, left) for entries, left in ((40, 20), (40, 5), (40, 1), (16, 13), (5, 1))],
    Operation("calendar, new key", nothing, lambda scene: scene.hit(scene.key(1), parse_limit("9/calendar-day"))),
    Operation("several limits, new", nothing, _several_limits),
    Operation("several limits, known", _before_several_limits, _hit_several_limits),
    Operation("several shards, known and new", _before_shards, _in_shards),
    Operation("several shards, new", nothing, _in_shards),
    Operation(
        "a state is dropped for a new key",
        lambda scene: _fill(scene, Limit(5, MINUTE, 0, "fixed-window")),
        lambda scene: scene.spend(scene.key(1), LOG),
        evicts=True,
    ),
    Operation(
        "a new key overflows",
        lambda scene: _fill(scene, ONCE),
        lambda scene: scene.spend(scene.key(1), LOG),
        evicts=True,
    ),
    Operation(
        "a log is dropped for blocks",
        _fill_with_logs,
        lambda scene: scene.hit(scene.key(11), LOG),
        evicts=True,
    ),
    Operation("reset", lambda scene: scene.hit(scene.key(1), LOG), lambda scene: _reset(scene)),
    Operation("reset of a log", lambda scene: scene.log(scene.key(1), 40), lambda scene: _reset(scene)),
    Operation("slot, new key", nothing, _held),
    Operation("slot, many held", _many_held, lambda scene: scene.spend(scene.key(1), SLOTS, extra=slot(99))),
    Operation("last slot released", _held, lambda scene: _release(scene, 7)),
    Operation("one of many slots released", _many_held, lambda scene: _release(scene, 7)),
    Operation("slots released together with a refund", _before_release, _release_with_others),
    Operation(
        "several limits refunded to nothing",
        lambda scene: scene.spend(scene.key(1), *REFUNDED),
        lambda scene: scene.spend(scene.key(1), *REFUNDED, mode="force", cost=-1),
    ),
    Operation("value", nothing, lambda scene: scene.spend(scene.key(1), VALUES, extra=slot(5))),
    Operation("first strike", _once, _strike),
    Operation("blocking strike", _twice, _strike),
    Operation("result is a strike", nothing, lambda scene: _forced_strike(scene)),
    Operation("clock stepped back", _step_back, lambda scene: scene.hit(scene.key(1), ONCE)),
]


def _reset(scene: Scene) -> None:
    scene.storage.reset([(scene.key(1), (LOG,), 0, None, None)])


def _release(scene: Scene, number: int) -> None:
    scene.spend(scene.key(1), SLOTS, mode="force", cost=-1, extra=slot(number))


def _forced_strike(scene: Scene) -> None:
    scene.spend(scene.key(1), PENALTY, mode="force", cost=0, extra=STRIKE)
