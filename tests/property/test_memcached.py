"""Memcached decides like the kernels over a dict, to the unit: any history of rates and quotas."""

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.limit import Group
from ratebound.storage.memcached import item, storage
from ratebound.storage.memcached.storage import MemcachedStorage
from ratebound.testing import FakeClock
from tests.databases import Memcached
from tests.property.histories import check_history, check_long_log
from tests.property.strategies import START, limits, quotas, starts

runs = itertools.count()


def with_parts(group: Group) -> Group:
    """A group of several keys without patience: its places are for one instant only if one step decides them all."""
    if len({key for key, *_ in group}) == 1:
        return group
    return [(key, asked, cost, None, extras) for key, asked, cost, _, extras in group]


@contextmanager
def as_in_a_dict() -> Iterator[None]:
    """Items keep what has expired, and no clock is taken for that of another host: in these histories clocks are set
    back, by microseconds and by years."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item, "GRACE", 10**17)
        patch.setattr(storage, "SKEW", 0)
        yield


def storages(servers: list[Memcached], clock: FakeClock) -> tuple[MemcachedStorage, MemcachedStorage]:
    """Two over the same states, as two processes have them."""
    hosts = ",".join(server.url.removeprefix("memcached://") for server in servers)
    url = f"memcached://{hosts}?prefix=diff{next(runs)}-&timeout=5&connect_timeout=5"
    return MemcachedStorage(url, clock=clock), MemcachedStorage(url, clock=clock)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(), min_size=2, max_size=4), st.data())
def test_any_history_of_groups_is_answered_alike(
    memcached_pair: list[Memcached], pool: list[Limit], data: st.DataObject
) -> None:
    clock = FakeClock(START)
    before, after = storages(memcached_pair, clock)
    with closing(before), closing(after), as_in_a_dict():
        check_history(before, after, clock, pool, data, with_parts)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(quotas(), min_size=1, max_size=3),
    st.lists(st.one_of(limits(), quotas()), min_size=1, max_size=3),
    starts(),
    st.data(),
)
def test_any_history_with_quotas_is_answered_alike(
    memcached_pair: list[Memcached], pool: list[Limit], others: list[Limit], start: int, data: st.DataObject
) -> None:
    clock = FakeClock(start)
    before, after = storages(memcached_pair, clock)
    with closing(before), closing(after), as_in_a_dict():
        check_history(before, after, clock, pool + others, data, with_parts)


@pytest.mark.parametrize("most", [1, 3], ids=["each costs one", "costs differ"])
def test_a_long_log_is_answered_alike_wherever_it_is_touched(
    most: int, memcached_pair: list[Memcached], clock: FakeClock
) -> None:
    for made in storages(memcached_pair, clock)[:1]:
        with closing(made):
            check_long_log(made, clock, 1, most)
