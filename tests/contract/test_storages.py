"""Every storage, sync and async, keeps the one contract."""

from collections.abc import Callable, Iterator

import pytest

from ratekeeper import AsyncMemoryStorage, MemoryStorage
from ratekeeper.clock import Clock
from ratekeeper.storage import Storage
from ratekeeper.testing import STORAGE_CONTRACT, Blocking, Claim, FakeClock

STORAGES: dict[str, Callable[[Clock], Storage]] = {
    "memory": lambda clock: MemoryStorage(clock=clock),
    "async memory": lambda clock: Blocking(AsyncMemoryStorage(clock=clock)),
}


@pytest.fixture(params=STORAGES)
def subject(request: pytest.FixtureRequest) -> Iterator[tuple[Storage, FakeClock]]:
    clock = FakeClock()
    storage = STORAGES[request.param](clock)
    yield storage, clock
    storage.close()


@pytest.mark.parametrize("claim", STORAGE_CONTRACT, ids=lambda claim: claim.__name__)
def test_it_is_true_that(claim: Claim, subject: tuple[Storage, FakeClock]) -> None:
    claim(*subject)
