"""States that are kept outside of this process as bytes: their names, their bytes, and the decision of a group.

SQLite, PostgreSQL and Memcached read the bytes of all states of a group, let `StoredGroup.decide` run the kernels on
them, and write what has changed. There is no I/O here, and no clock.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from ratebound.errors import StorageError
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.group_law import evaluate
from ratebound.kernels.packing import packed, unpacked
from ratebound.kernels.state import State
from ratebound.limit import Group, Mode
from ratebound.numbers import Numbers
from ratebound.outcome import Row

FORMAT: Final = 1  # the first byte of a state: another number is one that this version does not know
MAX_SECRET: Final = 64  # bytes


class StateNames:
    """The names of states: 16 bytes of a digest of the key, and 16 of the scope (law 10).

    With a `secret` the digest of a key is keyed, so that nobody without it can tell whose state a name is. Another
    secret starts all counts anew. Raises ValueError if the secret has more than 64 bytes.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: str | bytes = b"") -> None:
        self._secret = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
        if len(self._secret) > MAX_SECRET:
            raise ValueError(f"secret must have at most {MAX_SECRET} bytes")

    def of(self, key: str, limit: Numbers) -> bytes:
        """Return the name of the state of a key and a limit."""
        return self.of_key(key) + _digest_of_scope(limit.scope)

    def of_key(self, key: str) -> bytes:
        """Return the beginning of the names of all states of a key."""
        return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret).digest()


@lru_cache(maxsize=4096)
def _digest_of_scope(scope: str) -> bytes:
    return blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def state_to_bytes(limit: Numbers, state: State) -> bytes:
    """Return a state as bytes; none if it was never spent from."""
    numbers = packed(limit, state)
    return b"" if numbers is None else struct.pack(f"<B{len(numbers)}q", FORMAT, *numbers)


def state_from_bytes(limit: Numbers, data: bytes) -> State:
    """Return the state that was written; an untouched one for no bytes. Raises StorageError for bytes of no state."""
    if not data:
        return unpacked(limit, None)
    if data[0] != FORMAT or len(data) % 8 != 1:
        raise StorageError(
            f"a state in the storage has format {data[0]}, and this version reads format {FORMAT}: upgrade all"
            " processes that use the storage, or delete its states",
            undone=True,
            outage=False,
        )
    try:
        return unpacked(limit, struct.unpack(f"<{len(data) // 8}q", data[1:]))
    except (IndexError, TypeError, ValueError):
        raise StorageError(
            "a state in the storage is damaged: delete it, or reset its key", undone=True, outage=False
        ) from None


def holders_in(limit: Numbers, data: bytes, now: int) -> list[tuple[int, int]]:
    """Return (id, expiry) of each slot in a state that is held now, the earliest expiry first. Raises StorageError."""
    state = state_from_bytes(limit, data)
    return state.holders(now) if isinstance(state, Slots) else []


class StateChange(NamedTuple):
    """A state to write: its name, its bytes, and the instant from which it is as if untouched.

    It is to be deleted if there are no bytes.
    """

    name: bytes
    data: bytes
    expires: int  # microseconds of the storage's clock


class StoredGroup:
    """A group, and the names of its states, each once and sorted: storages lock them in this order.

    It keeps nothing that `decide` changes, so that a group whose transaction failed can be decided again.
    """

    __slots__ = ("_group", "_limits", "_order", "_plain_cost", "names")

    def __init__(self, group: Group, names: StateNames) -> None:
        self._group = group
        self._plain_cost = 0  # the cost of a group that is one rate or quota of one key; else 0
        if len(group) == 1 and len(group[0][1]) == 1:
            key, (only,), cost, patience, extras = group[0]
            self.names = [names.of_key(key) + _digest_of_scope(only.numbers.scope)]
            self._limits = [only.numbers]
            self._order = [0]
            if only.numbers.plain and patience is None and extras is None:
                self._plain_cost = cost
            return
        found: dict[bytes, Numbers] = {}
        asked: list[bytes] = []
        for key, limits, *_ in group:
            of_key = names.of_key(key)
            for limit in limits:
                name = of_key + _digest_of_scope(limit.numbers.scope)
                found.setdefault(name, limit.numbers)
                asked.append(name)
        self.names = sorted(found)
        self._limits = [found[name] for name in self.names]
        places = {name: place for place, name in enumerate(self.names)}
        self._order = [places[name] for name in asked]

    def decide(self, found: Mapping[bytes, bytes], mode: Mode, now: int) -> tuple[list[Row], list[StateChange]]:
        """Decide the group at one instant, from the bytes of its states by name. A state that is missing is untouched.

        Return the rows, and the states that have to be written. A peek has some only if the clock stepped back, so that
        a state had to be repaired: a storage that reads without a lock for a peek then decides again with the lock.
        Raises StorageError for bytes that are no state.
        """
        before = [found.get(name, b"") for name in self.names]
        states = [state_from_bytes(limit, data) for limit, data in zip(self._limits, before, strict=True)]
        if self._plain_cost and mode == "spend":
            only, state = self._limits[0], states[0]
            if state.fits(only, now, self._plain_cost):
                row = state.spend(only, now, self._plain_cost, None, 0)
                return [row], [StateChange(self.names[0], state_to_bytes(only, state), state.expires)]
        rows = evaluate(self._group, mode, self._order, states, now)
        changes: list[StateChange] = []
        for name, limit, data, state in zip(self.names, self._limits, before, states, strict=True):
            after = state_to_bytes(limit, state)
            if after != data:
                changes.append(StateChange(name, after, state.expires))
        return rows, changes
