"""A leaky bucket tells each request its delay; nobody is made to wait for longer than a bound.

What would have to wait longer is refused by the kernel itself, in the same step, and so costs nothing.
"""

from collections.abc import Sequence

from ratekeeper.decision import Row
from ratekeeper.limit import Ask, Group, Mode, spans
from ratekeeper.storage import AsyncStorage, Storage


def impatient(groups: Sequence[Group], patience: int) -> Sequence[Group]:
    """The same groups, with queues that are no longer than `patience` microseconds; rows come in the same order."""
    for group in groups:
        for _, limits, *_ in group:
            for limit in limits:
                if limit.queues:
                    return [[part for ask in group for part in _parts(ask, patience)] for group in groups]
    return groups


def _parts(ask: Ask, patience: int) -> list[Ask]:
    """One ask for each limit, as patience is the ask's: other buckets would hand out places in the future."""
    key, limits, cost, _, spent = ask
    if not any(limit.queues for limit in limits):
        return [ask]
    return [
        (key, (limit,), cost, patience if limit.queues and patience < spans(limit, cost)[0] else None, spent)
        for limit in limits
    ]


class ImpatientStorage:
    """A storage whose queues are never longer than `patience` microseconds."""

    def __init__(self, inner: Storage, patience: int) -> None:
        self.inner = inner
        self.patience = patience

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return self.inner.evaluate(groups if mode == "force" else impatient(groups, self.patience), mode)

    def reset(self, group: Group) -> None:
        self.inner.reset(group)

    def close(self) -> None:
        self.inner.close()


class AsyncImpatientStorage:
    """The same for tasks."""

    def __init__(self, inner: AsyncStorage, patience: int) -> None:
        self.inner = inner
        self.patience = patience

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return await self.inner.evaluate(groups if mode == "force" else impatient(groups, self.patience), mode)

    async def reset(self, group: Group) -> None:
        await self.inner.reset(group)

    async def close(self) -> None:
        await self.inner.close()
