"""Reservations: an estimate that is charged before the work, and committed as what the work has cost in fact."""

from ratebound.decider import AsyncDecider, Decider
from ratebound.decision import Decision
from ratebound.uncancelled import uncancelled

COMMITTED = "this reservation is committed already: commit once, with the sum of what was used"


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
        return await uncancelled(self._commit(cost))

    async def _commit(self, cost: int) -> Decision:
        self.decision = await self._decider.settle(self.decision, cost)
        self.committed = True
        return self.decision
