"""Read the arguments of a limiter, and make of them what a storage is asked. Every mistake raises here."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ratebound.clock import microseconds
from ratebound.duration import Duration, as_seconds
from ratebound.errors import InvalidKey, InvalidLimit
from ratebound.events import Listener
from ratebound.extras import extras_of
from ratebound.kernels.group_law import peek as peek_at
from ratebound.kernels.packing import unpacked
from ratebound.limit import MAX_PERIOD, Algorithm, Ask, Check, Group, Limit, Slice, checked_cost, checked_key, limit_set
from ratebound.notation import parse_limits
from ratebound.outcome import Row
from ratebound.rate_limited import Patience
from ratebound.values import Values

T = TypeVar("T")
Limits = str | Limit | Iterable[Limit]
SliceOption = bool | float | str | Slice | Mapping[str, Any]


def as_limits(limits: Limits, default_algorithm: Algorithm | None) -> tuple[Limit, ...]:
    """Return the limits that a text, a Limit or several of them stand for. Raises InvalidLimit."""
    return limit_set(parse_limits(limits, default=default_algorithm) if isinstance(limits, str) else limits)


def as_listeners(listeners: Iterable[Listener]) -> tuple[Listener, ...]:
    """Return the listeners as a tuple. Raises TypeError for what cannot be called."""
    found = tuple(listeners) if isinstance(listeners, Iterable) else None
    if found is None or not all(map(callable, found)):
        raise TypeError(f"listeners must be a list of functions of one event, not {listeners!r}")
    return found


def as_sleep(sleep: Callable[[float], Any], *, awaited: bool) -> Callable[[float], Any]:
    """Return `sleep` as it is. Raises TypeError if it cannot be called, or is of the other kind."""
    if awaited and not inspect.iscoroutinefunction(sleep):
        raise TypeError(f"sleep must be an async def here, like FakeClock().async_sleep, not {sleep!r}")
    if not callable(sleep) or (inspect.iscoroutinefunction(sleep) and not awaited):
        raise TypeError(f"sleep must be a function of seconds, like FakeClock().sleep, not {sleep!r}")
    return sleep


def as_slice(given: SliceOption | None) -> Slice | None:
    """Return the slice that an option of a limiter stands for; None if it asks for none. Raises InvalidLimit."""
    if given is None or given is False:
        return None
    if given is True:
        return Slice()
    if isinstance(given, Slice):
        return given
    if not isinstance(given, Mapping):
        return Slice(given)  # type: ignore[arg-type]  # it reads text
    unknown = [name for name in given if name not in ("share", "for")]
    if unknown:
        raise InvalidLimit(
            f"a slice has 'share' and 'for', not {unknown[0]!r}: for example {{'share': '5%', 'for': 1}}"
        )
    options = Slice(given.get("share", Slice().share))
    if "for" not in given:
        return options
    try:
        lives = as_seconds("'for'", given["for"])
    except (TypeError, ValueError):
        raise InvalidLimit(
            "the 'for' of a slice must be seconds or a timedelta, from 1 millisecond to 1 hour, not"
            f" {given['for']!r}: for example {{'for': 0.5}}"
        ) from None
    return Slice(options.share, microseconds(lives, MAX_PERIOD))


def as_deny_cache(given: object) -> bool:
    """Return the option as it is. Raises InvalidLimit if it is neither True nor False."""
    if isinstance(given, bool):
        return given
    raise InvalidLimit(f"deny_cache must be True or False, not {given!r}")


def as_storage(storage: Any, opened: Callable[[Any], Any]) -> Any:
    """Return a storage: the object that was given, or what `opened` makes of a URL or of a client of redis-py.

    Raises TypeError for anything else.
    """
    found = opened(storage) if isinstance(storage, str) or _is_redis_client(storage) else storage
    if isinstance(found, type) or not callable(getattr(found, "evaluate", None)):
        raise TypeError(
            "a storage is a URL like 'memory://', or an object like MemoryStorage() or a client of redis-py,"
            f" not {storage.__name__ if isinstance(storage, type) else type(storage).__name__}"
        )
    return found


def _is_redis_client(storage: Any) -> bool:
    """Return True for a client of redis-py. Its classes are known by name, so that redis-py is not imported here."""
    modules = [kind.__module__.partition(".")[0] for kind in type(storage).__mro__]
    return "redis" in modules and not hasattr(storage, "evaluate")


def as_patience(timeout: Duration | None, max_delay: float) -> Patience:
    """Return how long a wait may take: the timeout that was given, or `max_delay`."""
    if timeout is None:
        return Patience("max_delay", max_delay, microseconds(max_delay, MAX_PERIOD))
    given = as_seconds("timeout", timeout)
    return Patience("timeout", given, microseconds(given, MAX_PERIOD))


def group_of(
    key: object, limits: tuple[Limit, ...], cost: object, values: Values | None = None, *, strikes: bool = True
) -> Group:
    """Return the group of one ask. Raises InvalidKey, InvalidCost or InvalidValue.

    Without `strikes`, a denial is not counted by a penalty.
    """
    found = checked_key(key)
    return ((found, limits, checked_cost(cost), None, extras_of(found, limits, values, strikes=strikes)),)


MANY = 100  # groups in one call of `hit_many`: as many as a storage that others share may be held up for


def groups_of(keys: Iterable[str], limits: tuple[Limit, ...], cost: object) -> list[Group]:
    """Return a group for each key. Raises InvalidKey or InvalidCost, also for one text instead of several keys."""
    if isinstance(keys, str):
        raise InvalidKey("hit_many takes several keys, not one text: for example ['user:1', 'user:2']")
    return [group_of(key, limits, cost) for key in keys]


def in_parts(groups: Sequence[T]) -> list[Sequence[T]]:
    """Cut groups, or what stands for them, into calls that hold up nobody else for long."""
    return [groups[start : start + MANY] for start in range(0, len(groups), MANY)]


def group_of_checks(checks: Check | Iterable[Check]) -> Group:
    """Return one group of all checks.

    Raises InvalidLimit if two different limits would share one count, and InvalidKey if there is no check.
    """
    group: list[Ask] = []
    for check in [checks] if isinstance(checks, Check) else checks:
        if not isinstance(check, Check):
            raise TypeError(f"expected Check('user:42', parse_limit('100/minute')), not {type(check).__name__}")
        key, limits, cost, *_ = check.ask()
        group.append((key, limits, cost, None, extras_of(key, limits, check.values)))
    if not group:
        raise InvalidKey("check needs at least one Check")
    refuse_shared_counts(group)
    return group


def refuse_shared_counts(group: Group) -> None:
    """Raise InvalidLimit if two different limits of a group would share one count."""
    seen: dict[tuple[str, str], Limit] = {}
    for key, limits, *_ in group:
        for limit in limits:
            other = seen.setdefault((key, limit.scope), limit)
            if other != limit:
                raise InvalidLimit(f"'{other}' and '{limit}' on one key would share one count: name one of them")


def unlimited(groups: Sequence[Group]) -> list[Sequence[Row]]:
    """Return what untouched limits would say: the answer while `ratebound.testing` has turned limiting off."""
    now = time.time_ns() // 1000
    return [[_untouched(limit, now, cost) for _, limits, cost, *_ in group for limit in limits] for group in groups]


def _untouched(limit: Limit, now: int, cost: int) -> Row:
    """Return an allowed row of a limit that nothing was spent of."""
    return (True, *peek_at(limit.numbers, unpacked(limit.numbers, None), now, cost)[1:])
