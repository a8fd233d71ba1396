"""PostgreSQL decides like the kernels over a dict, to the unit, for threads and for tasks over the same rows."""

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.storage.postgres.storage import PostgresStorage
from ratebound.testing import Blocking, FakeClock
from tests.databases import Postgres
from tests.postgres.tables import fresh_url
from tests.property.histories import (
    check_every_kind,
    check_history,
    check_long_log,
    check_slots,
    penalties,
    value_limits,
)
from tests.property.strategies import START, limits, quotas, slot_limits, starts

runs = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def no_sweeps() -> Iterator[None]:
    """Sweep nothing: a clock that steps back after a sweep does not find the states that had expired before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ratebound.storage.postgres.calls.SWEEPS", 1e9)
        yield


def check_on_postgres(url: str, pool: list[Limit], start: int, data: st.DataObject) -> None:
    """Half of the history is by tasks, over the same rows."""
    clock = FakeClock(start)
    before = PostgresStorage(f"{url}-{next(runs)}", clock=clock)
    with closing(before), closing(Blocking(before.async_twin())) as after:
        check_history(before, after, clock, pool, data)


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> str:
    return fresh_url(postgres)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(), min_size=2, max_size=4), st.data())
def test_any_history_of_groups_is_answered_alike(url: str, pool: list[Limit], data: st.DataObject) -> None:
    check_on_postgres(url, pool, START, data)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(st.one_of(value_limits(), penalties(), quotas(), slot_limits()), min_size=1, max_size=3),
    st.lists(st.one_of(limits(), quotas(), slot_limits(), value_limits(), penalties()), min_size=1, max_size=3),
    starts(),
    st.data(),
)
def test_any_history_with_all_kinds_of_limits_is_answered_alike(
    url: str, pool: list[Limit], others: list[Limit], start: int, data: st.DataObject
) -> None:
    check_on_postgres(url, pool + others, start, data)


@pytest.fixture
def storage(postgres: Postgres, clock: FakeClock) -> Iterator[PostgresStorage]:
    with closing(PostgresStorage(fresh_url(postgres), clock=clock)) as storage:
        yield storage


def test_groups_that_touch_many_slots_of_one_key_are_answered_alike(storage: PostgresStorage, clock: FakeClock) -> None:
    check_slots(storage, clock, 1)


def test_a_long_history_of_every_kind_of_limit_is_answered_alike(storage: PostgresStorage, clock: FakeClock) -> None:
    check_every_kind(storage, clock, 1)


@pytest.mark.parametrize("most", [1, 3], ids=["each costs one", "costs differ"])
def test_a_long_log_is_answered_alike_wherever_it_is_touched(
    most: int, storage: PostgresStorage, clock: FakeClock
) -> None:
    check_long_log(storage, clock, 1, most)
