"""The seam between deciding and keeping: one verb, `evaluate`, beside `reset` and `close` (law 2).

Anything with these three methods is a storage. `ratekeeper.testing` has the contract that it must keep. What it may
have beside them: `at_once(group)`, the spend of one group from who never waits, and is not awaited either; and for its
guard (see guarded.py) `deadline`, seconds by which every call of it has ended, `nodes_of(group)`, which servers a group
is on, and `loops`, the event loops in which there is something to close.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ratekeeper.decision import Row
from ratekeeper.limit import Group, Mode


class Storage(Protocol):
    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself, in order; each one is decided atomically, all or nothing."""

    def reset(self, group: Group) -> None:
        """Forget the state of each ask's key and limits; costs are ignored."""

    def close(self) -> None:
        """Let go of what is held open. Calling it twice is fine."""


class AsyncStorage(Protocol):
    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]: ...

    async def reset(self, group: Group) -> None: ...

    async def close(self) -> None: ...


class RedisClient(Protocol):
    """A client of redis-py, of any kind. Its address and credentials are used, not its connections."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
