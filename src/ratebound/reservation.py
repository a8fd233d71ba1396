"""Reservations: an estimate that is charged before the work, and committed as what the work has cost in fact."""

import asyncio

from ratebound.decider import AsyncDecider, Decider
from ratebound.decision import Decision

COMMITTED = "this reservation is committed already: commit once, with the sum of what was used"
_commits: set[asyncio.Task[Decision]] = set()  # an event loop keeps only weak references to tasks


class Reservation:
    """Units that were charged in advance; see `Limiter.reserve`.

    `decision` is the decision that reserved them; after `commit`, as it stands then. `committed` is True after that.
    """

    def __init__(self, decider: Decider, decision: Decision) -> None:
        self.decision = decision
        self.committed = False
        self._decider = decider

    def commit(self, cost: int) -> Decision:
        """Charge `cost` instead of what was reserved. It may be 0, or more than that; see `Limiter.settle`.

        Raises ValueError if the reservation is committed already.
        """
        if self.committed:
            raise ValueError(COMMITTED)
        self.decision = self._decider.settle(self.decision, cost)
        self.committed = True
        return self.decision


class AsyncReservation:
    """Units that were charged in advance; see `Reservation`."""

    def __init__(self, decider: AsyncDecider, decision: Decision) -> None:
        self.decision = decision
        self.committed = False
        self._decider = decider

    async def commit(self, cost: int) -> Decision:
        """Charge `cost` instead of what was reserved; see `Reservation.commit`.

        A commit goes on although its task is cancelled: a client that disconnects has used what it has used.
        """
        if self.committed:
            raise ValueError(COMMITTED)
        commit = asyncio.get_running_loop().create_task(self._commit(cost), name="ratebound-commit")
        _commits.add(commit)
        commit.add_done_callback(_commits.discard)
        return await asyncio.shield(commit)

    async def _commit(self, cost: int) -> Decision:
        self.decision = await self._decider.settle(self.decision, cost)
        self.committed = True
        return self.decision
