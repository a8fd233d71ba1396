"""Reservations: an estimate that is charged before the work, and committed as what the work has cost in fact."""

from ratebound.decider import AsyncDecider, Decider
from ratebound.decision import Decision
from ratebound.uncancelled import uncancelled

COMMITTED = "this reservation is committed already: commit once, with the sum of what was used"


class Reservation:
    """Units that were charged in advance; see `Limiter.reserve`.

    `decision` is the decision that reserved them; after `commit`, as it stands then. `committed` is True after that.

    Args:
        decider: What charges and settles. Limiters give theirs.
        decision: The decision that reserved the units.

    Examples:
        >>> from ratebound import Limiter
        >>> limiter = Limiter("1000/minute")
        >>> with limiter.reserve("user:42", 500) as reservation:
        ...     decision = reservation.commit(120)
        >>> reservation.committed, reservation.decision.remaining
        (True, 880)
    """

    def __init__(self, decider: Decider, decision: Decision) -> None:
        self.decision = decision
        self.committed = False
        self._decider = decider

    def commit(self, cost: int) -> Decision:
        """Charge `cost` instead of what was reserved; see `Limiter.settle`.

        Args:
            cost: The units that were used in fact: 0 or more, also more than was reserved.

        Returns:
            The decision as it stands then.

        Raises:
            ValueError: The reservation is committed already.
            InvalidCost: The cost is not a whole number from 0 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        if self.committed:
            raise ValueError(COMMITTED)
        self.decision = self._decider.settle(self.decision, cost)
        self.committed = True
        return self.decision


class AsyncReservation:
    """Units that were charged in advance; see `Reservation`.

    Args:
        decider: What charges and settles. Limiters give theirs.
        decision: The decision that reserved the units.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncLimiter
        >>> async def main():
        ...     limiter = AsyncLimiter("1000/minute")
        ...     async with limiter.reserve("user:42", 500) as reservation:
        ...         await reservation.commit(120)
        ...     return reservation.decision.remaining
        >>> asyncio.run(main())
        880
    """

    def __init__(self, decider: AsyncDecider, decision: Decision) -> None:
        self.decision = decision
        self.committed = False
        self._decider = decider

    async def commit(self, cost: int) -> Decision:
        """Charge `cost` instead of what was reserved; see `Reservation.commit`.

        A commit goes on although its task is cancelled: a client that disconnects has used what it has used.

        Args:
            cost: The units that were used in fact: 0 or more, also more than was reserved.

        Returns:
            The decision as it stands then.

        Raises:
            ValueError: The reservation is committed already.
            InvalidCost: The cost is not a whole number from 0 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
        """
        if self.committed:
            raise ValueError(COMMITTED)
        return await uncancelled(self._commit(cost))

    async def _commit(self, cost: int) -> Decision:
        self.decision = await self._decider.settle(self.decision, cost)
        self.committed = True
        return self.decision
