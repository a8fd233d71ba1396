"""Long random histories of decisions, as text: the same seed must give the same text in every build.

    python -m tests.compiled.history SEED DECISIONS [SEEDS]

prints `compiled` or `pure`, and then one line for each decision, for SEEDS seeds from SEED on. Half of a history asks a
storage everything that it can be asked: several keys and limits at once, costs, patience, peeks, settlements, undoing,
slots that are held and released, values, strikes, grants, resets, steps of the clock in both directions, few keys and
many. The other half does with limiters what users do.
"""

import copy
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ratebound
from ratebound import Check, Decision, Limit, Limiter, RateLimited
from ratebound.calendar_period import Calendar
from ratebound.errors import RateboundError
from ratebound.limit import GRANT, NO_STRIKE, NOT_GIVEN
from ratebound.settling import settlement, undoing
from ratebound.slots import slots_of
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock

ALGORITHMS = ("token-bucket", "gcra", "leaky-bucket", "fixed-window", "sliding-log", "sliding-counter")
PERIODS = (1, 7, 1_000, 999_983, 1_000_000, 60_000_000, 86_400_000_000)
COUNTS = (1, 2, 3, 7, 10, 100, 1_000, 10_000, 10**9)
VALUES = ("account", "user")
ZONES = ("UTC", "Europe/Berlin", "America/Santiago", "Pacific/Apia", "Asia/Kolkata")
STARTS = (1_700_000_000_000_000,) * 5 + (0, 10**9, 2**61, -(10**15))
LAST = 2**57  # microseconds: no calendar has later days
ODD_COSTS: tuple[Any, ...] = (0, -1, True, 1.0, None, 10**12, 10**12 + 1, 2**64, -(2**70), "1")


def limits(chance: random.Random) -> list[Limit]:
    """Return limits of every kind; some share a scope and differ in count, zone, metering or lease."""
    found = []
    for number in range(chance.randint(2, 9)):
        algorithm: Any = chance.choice((*ALGORITHMS, "quota", "metered", "concurrent", "distinct", "penalty"))
        count, period = chance.choice(COUNTS), chance.choice(PERIODS)
        if algorithm == "quota":
            unit = chance.choice(("day", "week", "month", "year"))
            begin = {"week": chance.randint(1, 7), "month": chance.randint(1, 31)}.get(unit, 1)
            calendar = Calendar(unit, chance.choice(ZONES), begin)
            found.append(Limit(count, calendar=calendar, over=chance.choice(("deny", "allow"))))
            continue
        if algorithm == "metered":
            found.append(Limit(count, period, algorithm="fixed-window", over="allow"))
            continue
        if algorithm == "concurrent":
            lease = chance.choice((1_000_000, 60_000_000))
            found.append(Limit(min(count, 100), lease, algorithm=algorithm, name=chance.choice(("", "shared"))))
            continue
        if algorithm == "distinct":
            found.append(Limit(min(count, 10), period, algorithm=algorithm, large=True, values=chance.choice(VALUES)))
            continue
        if algorithm == "penalty":
            blocks = tuple(chance.choices((1_000_000, 5_000_000, 60_000_000, 86_400_000_000), k=chance.randint(1, 8)))
            forget, name = chance.choice((1_000_000, 3_600_000_000)), chance.choice(("", "shared"))
            strikes = chance.randint(1, 3)
            length = max(period, 2_500_000)
            found.append(Limit(strikes, length, 0, algorithm, name, blocks_us=blocks, forget_us=forget))
            continue
        burst = max(1, count * chance.choice((1, 1, 2, 5)) // chance.choice((1, 2)))
        name = chance.choice(("", "", f"n{number}", "shared"))
        if algorithm in ALGORITHMS[:3] and burst * period <= count * 10**15:
            found.append(Limit(count, period, burst, algorithm, name))
        else:
            found.append(Limit(count, period, 0, algorithm, name, large=True))
    return found


def history(seed: int, decisions: int) -> Iterator[str]:
    """Yield a line for each decision."""
    chance = random.Random(seed)
    done = 0
    while done < decisions:
        random.seed(chance.random())  # eviction samples from it
        pool = limits(chance)
        clock = FakeClock(chance.choice(STARTS))
        if clock.now > LAST:
            pool = [limit for limit in pool if limit.calendar is None] or [Limit(1, 1, 1, "gcra")]
        storage = MemoryStorage(max_keys=chance.choice((3, 20, 1_000)), clock=clock)
        keys = [f"k{number}" for number in range(chance.choice((1, 2, 30)))] + ["long" * 100]
        play = chance.choice((_asked_storage, _used_limiters))
        for line in play(chance, pool, clock, storage, keys):
            yield f"{line} {storage.keys} {storage.evicted} {storage.overflowed}"
            done += 1


def _asked_storage(
    chance: random.Random, pool: list[Limit], clock: FakeClock, storage: MemoryStorage, keys: list[str]
) -> Iterator[str]:
    """Ask a storage for groups in every mode."""
    allowed: list[tuple[Any, Any]] = []
    for _ in range(chance.randint(1, 300)):
        _move(chance, pool, clock)
        group = _group(chance, pool, keys)
        act = chance.random()
        if act < 0.75:
            (rows,) = storage.evaluate((group,))
            if all(row[0] for row in rows):
                allowed.append((group, rows))
        elif act < 0.85 or not allowed:
            (rows,) = storage.evaluate((group,), "peek")
        elif act < 0.92:
            settled, answers = allowed.pop(chance.randrange(len(allowed)))
            costs = [chance.choice((0, chance.randint(0, 2 * ask[2]))) for ask in settled]
            strikes = [chance.random() < 0.5 for _ in settled]
            (rows,) = storage.evaluate((settlement(settled, answers, costs, strikes),), "force")
        elif act < 0.94:
            (rows,) = storage.evaluate((undoing(*allowed.pop(chance.randrange(len(allowed)))),), "force")
        elif act < 0.96:
            (rows,) = storage.evaluate((slots_of(chance.choice(allowed)[0], chance.choice((1, -1))),), "force")
        elif act < 0.97:
            granted = [
                (key, asked, cost, None, [GRANT if limit.is_quota else NOT_GIVEN for limit in asked])
                for key, asked, cost, *_ in group
            ]
            (rows,) = storage.evaluate((granted,), "force")
        else:
            storage.reset(group)
            rows = []
        yield f"{act:.3f} {list(rows)} {storage.weight}"


def _used_limiters(
    chance: random.Random, pool: list[Limit], clock: FakeClock, storage: MemoryStorage, keys: list[str]
) -> Iterator[str]:
    """Use limiters that share a storage, some of them one scope with different counts, as tiers do.

    Slots are left to the other half: a limiter chooses their ids at random.
    """
    pool = [limit for limit in pool if not limit.has_slots] or [Limit(1, 1, 1, "gcra")]
    heard: list[str] = []

    def listener(event: Any) -> None:
        heard.append(read(event.decision))
        if len(heard) % 7 == 0:
            raise ValueError("a listener that fails")

    def limiter() -> Limiter:
        listeners = chance.choice(((), (), (listener,)))
        return Limiter(_one_key(chance, pool), storage=storage, sleep=clock.sleep, listeners=listeners)

    limiters = [limiter() for _ in range(chance.randint(1, 4))]
    made: list[Decision] = []
    for _ in range(chance.randint(1, 200)):
        _move(chance, pool, clock)
        act = chance.choices(tuple(ACTS), [weight for weight, _ in ACTS.values()])[0]
        try:
            decisions = ACTS[act][1](chance, chance.choice(limiters), pool, keys, made)
        except RateLimited as error:
            made.append(error.decision)
            said = f"{error} {read(error.decision)}"
        except (RateboundError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
        else:
            made += decisions
            said = " ".join(map(read, decisions))
        yield f"{act} {said} {heard}"
        heard.clear()
        del made[:-20]


def read(decision: Decision) -> str:
    """Return everything that can be read of a decision."""
    return (
        f"{decision!r} {bool(decision)} {decision.asks} {list(decision.rows)} {decision.outcomes} {decision.limits}"
        f" {decision.limit} {decision.remaining} {decision.retry_after} {decision.reset_after} {decision.delay}"
        f" {decision.at} {decision.degraded} {decision.unavailable} {decision.final} {decision.blocked}"
    )


def _hit(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    return [limiter.hit(chance.choice(keys), values=_values(chance, limiter.limits))]


def _hit_cost(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    cost = _cost(chance, limiter.limits)
    return [limiter.hit(chance.choice(keys), cost=cost, values=_values(chance, limiter.limits))]


def _hit_many(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    return limiter.hit_many(chance.choices(keys, k=chance.randint(0, 5)), cost=_cost(chance, limiter.limits))


def _peek(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    cost = _cost(chance, limiter.limits)
    return [limiter.peek(chance.choice(keys), cost=cost, values=_values(chance, limiter.limits))]


def _check(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    checks = []
    for _ in range(chance.randint(0, 3)):
        asked = _one_key(chance, pool)
        checks.append(Check(chance.choice(keys), asked, _cost(chance, asked), _values(chance, asked)))
    return [limiter.check(checks)]


def _settle(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    if not made:
        return []
    decision = chance.choice(made)
    cost = chance.choice((0, 1, 2, 5, [1] * len(decision.asks)))
    return [limiter.settle(decision, cost=cost, strike=chance.random() < 0.3)]


def _wait(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    timeout = chance.choice((None, 0, 0.001, 5, chance.choice(pool).period_us / 1e6))
    cost, values = _cost(chance, limiter.limits), _values(chance, limiter.limits)
    return [limiter.wait(chance.choice(keys), cost=cost, values=values, timeout=timeout)]


def _reset(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    limiter.reset(chance.choice(keys), limits=chance.choice((None, chance.choice(pool))))
    return []


def _change(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    limiter.limits = _one_key(chance, pool)
    return []


def _copy(chance: random.Random, limiter: Limiter, pool: list[Limit], keys: list[str], made: Any) -> list[Decision]:
    if not made:
        return []
    decision = chance.choice(made)
    return [copy.copy(decision), copy.deepcopy(decision), pickle.loads(pickle.dumps(decision))]


Act = Callable[[random.Random, Limiter, list[Limit], list[str], list[Decision]], list[Decision]]
ACTS: dict[str, tuple[int, Act]] = {
    "hit": (30, _hit),
    "hit with a cost": (20, _hit_cost),
    "hit_many": (5, _hit_many),
    "peek": (5, _peek),
    "check": (15, _check),
    "settle": (10, _settle),
    "wait": (15, _wait),
    "reset": (2, _reset),
    "limits": (2, _change),
    "copy": (2, _copy),
}


def _move(chance: random.Random, pool: list[Limit], clock: FakeClock) -> None:
    step = chance.random()
    scale = chance.choice(pool).period_us
    if step < 0.6:
        clock.now += chance.choice((0, 0, 1, scale // 10, scale, 3 * scale)) + chance.randint(0, 2)
    elif step < 0.65:
        clock.now -= chance.randint(0, 2 * scale)


def _one_key(chance: random.Random, pool: list[Limit]) -> tuple[Limit, ...]:
    """Return one limit or several, no two of which share a scope."""
    most = len(pool) if chance.random() < 0.3 else 1
    return tuple({limit.scope: limit for limit in chance.sample(pool, chance.randint(1, most))}.values())


def _values(chance: random.Random, asked: tuple[Limit, ...]) -> dict[str, str | int] | None:
    """Return the values that these limits count; sometimes one is missing, or too many."""
    named = [limit.values for limit in asked if limit.is_distinct]
    if chance.random() < 0.02:
        named = [chance.choice(VALUES)]
    return {name: chance.choice(("alice", "bob", 3, "carol", "dave")) for name in named} if named else None


def _cost(chance: random.Random, asked: tuple[Limit, ...]) -> Any:
    if chance.random() < 0.02:
        return chance.choice(ODD_COSTS)
    return chance.choice((1, 1, 1, 2, 3, max(limit.count for limit in asked) // 2 + 1))


def _group(chance: random.Random, pool: list[Limit], keys: list[str]) -> Any:
    asks = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        scopes = {limit.scope: limit for limit in chance.sample(pool, chance.randint(1, len(pool)))}
        cost = chance.choice((1, 1, 1, 2, 3, max(limit.count for limit in scopes.values()) // 2 + 1))
        patience = chance.choice((None, None, None, 0, 10, chance.choice(pool).period_us))
        asked = tuple(scopes.values())
        extras = None
        if not all(limit.numbers.plain for limit in asked):
            extras = [_extra(chance, limit) for limit in asked]
        asks.append((chance.choice(keys), asked, cost, patience, extras))
    return asks


def _extra(chance: random.Random, limit: Limit) -> tuple[int, int, int, int]:
    if limit.is_penalty:
        return chance.choice((NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NO_STRIKE))
    return NOT_GIVEN if limit.takes_cost else (chance.randrange(20), 0, 0, 0)


if __name__ == "__main__":
    import logging

    logging.disable()  # listeners fail on purpose
    print("compiled" if ratebound.compiled else "pure")  # noqa: T201
    first, length = int(sys.argv[1]), int(sys.argv[2])
    for number in range(first, first + (int(sys.argv[3]) if len(sys.argv) > 3 else 1)):
        for each in history(number, length):
            print(number, each)  # noqa: T201
