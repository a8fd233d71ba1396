"""Signed tokens: decisions that a caller carries with it, to be settled later by any worker of any instance.

A token holds all that settling has to know. So no instance has to remember it, and the storage keeps one small state
for a token only once it is used. It is signed, and not encrypted: a caller can read the keys and limits in it, and can
change nothing.

A token works once, at all instances together: using it spends a limit of one unit in the storage, before anything is
settled. If a worker dies between the two, the token is used, and what was charged stays charged.
"""

import hmac
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

from ratebound.clock import SECOND
from ratebound.decider import AsyncDecider
from ratebound.decision import Decision
from ratebound.errors import InvalidLimit, StorageError
from ratebound.events import Settled
from ratebound.limit import NOT_GIVEN, Ask, Extra, Limit, Slice
from ratebound.lowered import LoweredLimits
from ratebound.notation import parse_limit
from ratebound.outcome import DegradedRows
from ratebound.service.leased_slots import LeasedSlots
from ratebound.settling import Settlement, restated
from ratebound.slots import slots_of
from ratebound.telling import tell

PREFIX = "rb1."  # the version of the form
MIN_SECRET = 32  # bytes
MAX_USED = 10_000  # tokens of this process's own decisions that are remembered as used

Purpose = Literal["settle", "reservation", "release"]
SignedRow = tuple[bool, int, int | None, int, int, int, int, int, int | None]


class InvalidToken(ValueError):
    """A token that was not made here, or not for this call."""


class UsedToken(Exception):
    """A token that was used before."""


class ExpiredToken(Exception):
    """A token that has expired."""


class SignedLimit(Struct, array_like=True, frozen=True):
    """A limit: its text, and what the notation has no words for."""

    text: str
    failure: str = ""
    retry_us: int = 0
    warn: float = 0.0
    share: float = 0.0
    for_us: int = 0
    deny_cache: bool = False


class SignedAsk(Struct, array_like=True, frozen=True):
    """An ask. `configured` has the limits as they were written, if they were lowered at that time."""

    key: str
    limits: tuple[SignedLimit, ...]
    cost: int
    extras: list[Extra] | None
    configured: tuple[SignedLimit, ...] | None


class SignedDecision(Struct, array_like=True, frozen=True):
    """An allowed decision: what settling has to know. `is_enforced` is False for a rule in shadow. `endpoint` is
    where a usage ledger has counted it."""

    asks: list[SignedAsk]
    rows: list[SignedRow]
    is_enforced: bool = True
    degraded: str | None = None
    granted: int = 0
    endpoint: str = ""

    def decision(self) -> Decision:
        """Return the decision as it was made."""
        asks = [(ask.key, _limits_of(ask.limits, ask.configured), ask.cost, None, ask.extras) for ask in self.asks]
        if self.degraded is None:
            decision = Decision(asks, self.rows)
        else:
            decision = Decision(asks, DegradedRows(self.rows, self.degraded, granted=self.granted))
        if self.is_enforced:
            decision.note_endpoint(self.endpoint)
        return decision


class SignedDecisions(Struct, array_like=True, frozen=True):
    """The content of a token. `expires` and `lifetime` are in microseconds, by the storage's clock.

    `maker` names the process that decided. A decision without the storage can be corrected by that process only.
    """

    purpose: Purpose
    id: bytes
    maker: bytes
    expires: int
    lifetime: int
    decisions: list[SignedDecision]

    @property
    def is_degraded(self) -> bool:
        """True if a decision was made without the storage."""
        return any(one.degraded is not None for one in self.decisions)


class SignedTokens:
    """Make and read tokens. The first of `secrets` signs, all of them verify: put a new one first to replace one.

    `leased` counts the slots that tokens release. Raises ValueError if there is no secret, or if one is too short.
    """

    def __init__(self, secrets: Sequence[bytes], leased: LeasedSlots | None = None) -> None:
        found = list(secrets)
        if not found or not all(isinstance(secret, bytes) and len(secret) >= MIN_SECRET for secret in found):
            raise ValueError(
                f"tokens need a secret of at least {MIN_SECRET} bytes; make one with `openssl rand -hex 32`"
            )
        # A key of its own, so that the same secret can serve other purposes elsewhere.
        self._keys = [hmac.digest(secret, b"ratebound signed decisions", "sha256") for secret in found]
        self._decoder = msgspec.msgpack.Decoder(SignedDecisions)
        self._leased = leased
        self.maker = os.urandom(8)

    def __repr__(self) -> str:
        return f"SignedTokens({len(self._keys)} secrets)"

    def make(
        self, purpose: Purpose, decisions: Sequence[Decision], lifetime: int, enforced: Sequence[bool] = ()
    ) -> str:
        """Return a token for allowed decisions, which can be used for `lifetime` seconds.

        `enforced` is False for each decision of a rule in shadow.
        """
        expires = decisions[0].at + lifetime * SECOND
        flags = enforced or [True] * len(decisions)
        signed = [_signed(one, is_enforced) for one, is_enforced in zip(decisions, flags, strict=True)]
        return self._written(purpose, signed, expires, lifetime * SECOND)

    def make_release(self, decisions: Sequence[Decision]) -> str:
        """Return a token that releases the slots of decisions. It does not expire: its slots do."""
        held = [slots_of(one.asks, 1) for one in decisions]
        if self._leased is not None:
            for slots in held:
                self._leased.take(slots)
        signed = [SignedDecision([_signed_ask(ask) for ask in slots], []) for slots in held]
        return self._written("release", signed, 0, 0)

    def _written(self, purpose: Purpose, decisions: list[SignedDecision], expires: int, lifetime: int) -> str:
        content = SignedDecisions(purpose, os.urandom(16), self.maker, expires, lifetime, decisions)
        payload = msgspec.msgpack.encode(content)
        return PREFIX + urlsafe_b64encode(self._mac(self._keys[0], payload) + payload).rstrip(b"=").decode()

    def read(self, purpose: Purpose, token: str) -> SignedDecisions:
        """Return the content of a token. Raises InvalidToken if it was not made here, or for another purpose."""
        if not token.startswith(PREFIX) or not token.isascii():
            raise InvalidToken("this is not a token: send it as the answer has given it")
        text = token[len(PREFIX) :]
        try:
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            raise InvalidToken("this token is damaged: send it as the answer has given it") from None
        mac, payload = raw[: sha256().digest_size], raw[sha256().digest_size :]
        signer = None
        for key in self._keys:
            if hmac.compare_digest(self._mac(key, payload), mac):
                signer = key
        if signer is None:
            raise InvalidToken("this token is damaged, or was signed with a secret that this service does not know")
        try:
            content = self._decoder.decode(payload)
            for one in content.decisions:
                one.decision()
        except (msgspec.DecodeError, InvalidLimit):
            raise InvalidToken("this token cannot be read: another version of the service has made it") from None
        if content.purpose != purpose:
            raise InvalidToken(f"this token is for /v1/{_path(content.purpose)}")
        # Its key in the storage cannot be found out from the token: a caller could reset the state, and use it again.
        return msgspec.structs.replace(content, id=self._mac(signer, b"id:" + content.id)[: len(content.id)])

    def _mac(self, key: bytes, payload: bytes) -> bytes:
        return hmac.digest(key, PREFIX.encode() + payload, "sha256")


class TokenUse:
    """Settle, undo and release what tokens stand for, each once."""

    def __init__(self, decider: AsyncDecider, maker: bytes, leased: LeasedSlots | None = None) -> None:
        self._decider = decider
        self._maker = maker
        self._leased = leased
        self._used: dict[bytes, int] = {}  # of decisions that this process made without the storage: when they expire

    async def settle(self, content: SignedDecisions, cost: int | Sequence[int], strike: bool = False) -> list[Decision]:
        """Settle the decisions by `cost`, one for all asks or one for each. Return the enforced ones as settled.

        With one cost for each ask, rules in shadow stay charged as they are. Raises ValueError for another number of
        costs, UsedToken, ExpiredToken, and StorageError if the storage cannot say whether the token was used.
        """
        made = [(one, one.decision()) for one in content.decisions]
        costs = costs_of(content, cost)
        await self._use(content)
        settlements: list[Settlement] = []
        places: list[int] = []  # of the settlements among the decisions
        after: list[Decision] = [decision for _, decision in made]
        for place, ((signed, decision), each) in enumerate(zip(made, costs, strict=True)):
            if self._is_foreign(content, signed):
                after[place] = await self._charge_more(decision, each)
            else:
                strikes = [strike and signed.is_enforced and signed.degraded is None] * len(each)
                settlements.append(Settlement(decision, each, strikes))
                places.append(place)
        if settlements:
            for place, settled in zip(places, await self._decider.settle_each(settlements), strict=True):
                after[place] = settled
        return [decision for (signed, _), decision in zip(made, after, strict=True) if signed.is_enforced]

    async def undo(self, content: SignedDecisions) -> None:
        """Refund what the decisions were charged, and release their slots. Raises as `settle` does."""
        await self._use(content)
        for signed in content.decisions:
            if self._is_foreign(content, signed):
                await self._decider.release(signed.decision())
            else:
                await self._decider.undo(signed.decision())
            self._forget(signed)

    async def release(self, content: SignedDecisions) -> None:
        """Release the slots of the decisions. Can be repeated."""
        for signed in content.decisions:
            await self._decider.release(signed.decision())
            self._forget(signed)

    def _forget(self, signed: SignedDecision) -> None:
        if self._leased is not None:
            self._leased.release(slots_of(signed.decision().asks, -1))

    def _is_foreign(self, content: SignedDecisions, signed: SignedDecision) -> bool:
        """Return True if another process decided without the storage: its clock and its debts are not known here."""
        return signed.degraded is not None and content.maker != self._maker

    async def _charge_more(self, decision: Decision, costs: Sequence[int]) -> Decision:
        """Charge what exceeds the cost that another process granted alone. What was too much stays charged there."""
        group: list[Ask] = []
        for (key, limits, charged, _, _), cost in zip(decision.asks, costs, strict=True):
            group.append((key, limits, max(cost - charged, 0), None, [NOT_GIVEN] * len(limits)))
        rows = (await self._decider.evaluate((group,), "force"))[0]
        if self._decider.listeners:
            kept = [max(cost, ask[2]) for cost, ask in zip(costs, decision.asks, strict=True)]
            tell(self._decider.listeners, Settled(decision, restated(decision, kept, rows)))
        return restated(decision, costs, rows)

    async def _use(self, content: SignedDecisions) -> None:
        """Note that a token is used. Raises UsedToken or ExpiredToken if it cannot be any more, and StorageError."""
        if content.is_degraded and content.maker == self._maker:
            self._use_here(content)
            return
        ask: Ask = (f"ratebound:token:{content.id.hex()}", (_once(content.lifetime),), 1, None, None)
        rows = (await self._decider.evaluate(((ask,),)))[0]
        if isinstance(rows, DegradedRows):  # not by the limit's own failure mode; but never settle twice
            raise StorageError(rows.reason)
        if not rows[0][0]:
            raise UsedToken
        if rows[0][5] > content.expires:
            raise ExpiredToken

    def _use_here(self, content: SignedDecisions) -> None:
        """Note the use of a token that only this process can settle: the storage may be out of reach."""
        now = time.time_ns() // 1000
        if content.id in self._used:
            raise UsedToken
        if now > content.expires:
            raise ExpiredToken
        if len(self._used) >= MAX_USED:
            self._used = {id: expires for id, expires in self._used.items() if expires >= now}
            if len(self._used) >= MAX_USED:
                raise StorageError("too many tokens of decisions without the storage were used", undone=True)
        self._used[content.id] = content.expires


def costs_of(content: SignedDecisions, cost: int | Sequence[int]) -> list[list[int]]:
    """Return for each decision one cost for each of its asks. Raises ValueError if their number is wrong."""
    if isinstance(cost, int):
        return [[cost] * len(one.asks) for one in content.decisions]
    expected = sum(len(one.asks) for one in content.decisions if one.is_enforced)
    if len(cost) != expected:
        raise ValueError(f"expected one cost, or one for each of {expected} checks, not {len(cost)}")
    rest = iter(cost)
    return [[next(rest) if one.is_enforced else ask.cost for ask in one.asks] for one in content.decisions]


@lru_cache(maxsize=256)
def _once(lifetime: int) -> Limit:
    """Return a limit of one unit, which a token spends. Its state lasts longer than the token."""
    return Limit(1, lifetime, 1, "gcra", name="token", failure="raise")


def _path(purpose: Purpose) -> str:
    return "commit or /v1/cancel" if purpose == "reservation" else purpose


def _signed(decision: Decision, is_enforced: bool) -> SignedDecision:
    rows = decision.rows
    degraded, granted = (rows.reason, rows.granted) if isinstance(rows, DegradedRows) else (None, 0)
    asks = [_signed_ask(ask) for ask in decision.asks]
    return SignedDecision(asks, list(rows), is_enforced, degraded, granted, decision.noted_endpoint() or "")


def _signed_ask(ask: Ask) -> SignedAsk:
    key, limits, cost, _, extras = ask
    configured = limits.configured if isinstance(limits, LoweredLimits) else None
    return SignedAsk(
        key,
        tuple(map(_signed_limit, limits)),
        cost,
        None if extras is None else list(extras),
        None if configured is None else tuple(map(_signed_limit, configured)),
    )


def _signed_limit(limit: Limit) -> SignedLimit:
    part = limit.slice
    share, for_us = (0.0, 0) if part is None else (part.share, part.for_us)
    return SignedLimit(str(limit), limit.failure, limit.retry_us, limit.warn, share, for_us, limit.deny_cache)


@lru_cache(maxsize=256)  # a token may hold as many limits as a call has room for
def _limits_of(limits: tuple[SignedLimit, ...], configured: tuple[SignedLimit, ...] | None) -> tuple[Limit, ...]:
    found = tuple(map(_limit_of, limits))
    return found if configured is None else LoweredLimits(found, tuple(map(_limit_of, configured)))


def _limit_of(signed: SignedLimit) -> Limit:
    limit = parse_limit(signed.text)
    return replace(
        limit,
        name=limit.name if limit.named else "",
        large=True,
        failure=signed.failure,  # type: ignore[arg-type]  # as a limit had it when it was signed
        retry_us=signed.retry_us,
        warn=signed.warn,
        slice=Slice(signed.share, signed.for_us) if signed.for_us else None,
        deny_cache=signed.deny_cache,
    )
