"""The header fields of a response to a decision, in the styles that clients know.

Text that does not change between responses is prepared; a request only fills in its numbers. Waits are rounded up to
whole seconds, so a client that obeys is never early. On a denial `t`, the reset fields and Retry-After are the wait. On
success `t` is the time until more units are available, and a reset field the time until all are. It is unknown
when a slot will be free, so slots have no times; a rule may give one for Retry-After. Limits of distinct values are
named only if they deny. Penalties are never named: a blocked client is told how long to wait, and nothing else.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from typing import Literal

from ratebound import kernels
from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.http.caching import is_redirect, is_shareable
from ratebound.http.denial import QUOTA_EXCEEDED, kind_of, longest_wait
from ratebound.http.header_plan import HeaderPlan, HeaderPlans, Pairs, remaining_text, usual_pairs
from ratebound.http.shown import KONG_UNITS, Shown
from ratebound.http.structured import MAX_INTEGER, write_string
from ratebound.limit import Group, Limit
from ratebound.lowered import LoweredLimits, configured
from ratebound.outcome import DegradedRows, Row

# One limit's answer: the limit, the remaining units, microseconds until they grow (0: full or not known) and to reset
# (None: not known), its row.
Quota = tuple["Shown", int, int, int | None, Row]

Style = Literal["draft-11", "draft-07", "draft-06", "draft-03", "x-ratelimit", "kong", "none"]
ResetForm = Literal["epoch", "delta"]
RetryAfterForm = Literal["seconds", "date"]
SharedCaching = Literal["omit", "send"]

MAX_PLANS = 4096  # limits that are made per request must not fill memory
THREE = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
FIELDS: dict[str, tuple[str, ...]] = {
    "draft-11": ("RateLimit-Policy", "RateLimit"),
    "draft-07": ("RateLimit-Policy", "RateLimit"),
    "draft-06": ("RateLimit-Policy", *THREE),
    "draft-03": THREE,
    "x-ratelimit": ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
    "kong": (*(f"X-RateLimit-{part}-{unit}" for unit in KONG_UNITS for part in ("Limit", "Remaining")), *THREE),
}


def grows_after(limit: Limit, row: Row) -> int:
    """Return microseconds until more remains than now, if nothing more is spent. Never too short; 0 if it is full.

    Args:
        limit: The limit.
        row: What the storage answered for it, from `decision.rows`.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.http import grows_after
        >>> decision = Limiter("60/minute token-bucket").hit("user:42")
        >>> grows_after(decision.limit, decision.rows[0])
        1000000
    """
    return kernels.grows_after(limit.numbers, row[1], row[3])


class Headers:
    """The header fields that responses carry.

    Args:
        styles: One of draft-11, draft-07, draft-06, draft-03, x-ratelimit and kong, or several that share no field, or
            none.
        reset: The form of X-RateLimit-Reset: a Unix time (epoch) or seconds from now (delta).
        retry_after: The form of Retry-After: seconds or date.
        names: The names that clients see, by the names of limits.
        jitter: The largest part, from 0 to 10, by which each wait is lengthened at random, so that denied clients do
            not all return at once.
        cacheable: 'omit' leaves the fields out of responses that a shared cache may store, and of redirects; 'send'
            does not.

    Raises:
        ValueError: An option is invalid.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.http import Headers
        >>> decision = Limiter("10/minute as api").hit("user:42")
        >>> Headers("x-ratelimit", reset="delta").pairs(decision)
        [('X-RateLimit-Limit', '10'), ('X-RateLimit-Remaining', '9'), ('X-RateLimit-Reset', '60')]
    """

    def __init__(
        self,
        styles: Style | Iterable[Style] = "draft-11",
        *,
        reset: ResetForm = "epoch",
        retry_after: RetryAfterForm = "seconds",
        names: Mapping[str, str] | None = None,
        jitter: float = 0.0,
        cacheable: SharedCaching = "omit",
    ) -> None:
        self.styles = checked_styles(styles)
        if reset not in ("epoch", "delta"):
            raise ValueError(f"reset must be 'epoch' or 'delta', not {reset!r}")
        if retry_after not in ("seconds", "date"):
            raise ValueError(f"retry_after must be 'seconds' or 'date', not {retry_after!r}")
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 10:
            raise ValueError(f"jitter must be a fraction of the wait, 0 to 10, not {jitter!r}")
        if cacheable not in ("omit", "send"):
            raise ValueError(f"cacheable must be 'omit' or 'send', not {cacheable!r}")
        self.cacheable = cacheable
        self.names = dict(names or {})
        for name in self.names.values():
            write_string(name)
        self.jitter = jitter
        self.is_dated = retry_after == "date"
        self._epoch = reset == "epoch"
        writers = {
            "draft-11": self._draft_11,
            "draft-07": self._draft_07,
            "draft-06": self._draft_06,
            "draft-03": self._draft_03,
            "x-ratelimit": self._x_ratelimit,
            "kong": self._kong,
        }
        self._writers = [writers[style] for style in self.styles]
        self._is_usual = self.styles == ("draft-11",)
        self._shown: dict[Limit, Shown] = {}
        self._plans: HeaderPlans = {}
        self._usual_plans: HeaderPlans = {}  # those of `_plans` that are usual
        is_usual = self._is_usual and type(self).pairs is Headers.pairs
        self.usual_plans = self._usual_plans if is_usual else None  # for `usual_pairs`

    def prepare(self, limits: Sequence[Limit]) -> None:
        """Prepare the text for requests under these limits. Otherwise the first such request does.

        Args:
            limits: The limits of one decision, in order.

        Examples:
            >>> from ratebound import parse_limits
            >>> from ratebound.http import Headers
            >>> Headers().prepare(parse_limits("10/second; 1000/hour"))
        """
        self._plan((("", tuple(limits), 1, None, None),))  # tuple() of a tuple keeps its identity

    def shown(self, limit: Limit) -> Shown:
        """Return a limit as clients see it.

        Args:
            limit: The limit.

        Examples:
            >>> from ratebound import parse_limit
            >>> from ratebound.http import Headers
            >>> Headers(names={"login": "sign-in"}).shown(parse_limit("5/minute as login")).name
            'sign-in'
        """
        found = self._shown.get(limit)
        if found is None:
            if len(self._shown) >= MAX_PLANS:
                self._shown.clear()
            found = self._shown[limit] = Shown(limit, self.names.get(limit.name, limit.name))
        return found

    def asked(self, decision: Decision) -> list[Shown]:
        """Return the limits of a decision as clients see them, in the order of its outcomes.

        Args:
            decision: The decision about the request.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.http import Headers
            >>> decision = Limiter("10/second as short; 1000/hour as long").hit("user:42")
            >>> [shown.name for shown in Headers().asked(decision)]
            ['short', 'long']
        """
        return self._plan(decision.asks).shown

    def spread(self) -> float:
        """Return the factor by which the waits of one denial are lengthened."""
        return 1.0 + random.random() * self.jitter if self.jitter else 1.0

    def pairs(self, decision: Decision, spread: float | None = None) -> Pairs:
        """Return the fields for the response to a decision.

        Retry-After is included only if it is denied and a wait can help. It is the only field if a penalty blocks the
        client.

        Args:
            decision: The decision about the request.
            spread: The factor by which waits are lengthened, if a body reports the same waits. None draws one; see
                `spread`.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.http import Headers
            >>> Headers().pairs(Limiter("10/minute as api").hit("user:42"))
            [('RateLimit-Policy', '"api";q=10;w=60'), ('RateLimit', '"api";r=9;t=60')]
        """
        if decision.allowed and self._is_usual:
            usual = usual_pairs(self._usual_plans, decision)
            if usual is not None:
                return usual
        rows = decision.rows
        told: Pairs = []
        if not decision.allowed:
            if spread is None:
                spread = self.spread()
            kind = kind_of(decision)
            told = self.retry_after(longest_wait(decision, kind, spread), decision.at)
            # Without the storage the remaining units are unknown. While limits are lowered, no quota is exceeded.
            if kind != QUOTA_EXCEEDED:
                return told
        if not self._writers:
            return told
        plan = self._plan(decision.asks)
        degraded = isinstance(rows, DegradedRows)
        quotas: list[Quota] = []
        for shown, row in zip(plan.shown, rows, strict=True):
            if not shown.is_rate:
                if shown.is_advertised or not row[0]:
                    quotas.append(of_no_rate(shown, row, spread or 1.0))
                continue
            wait = row[2]
            if wait:
                after = reset = int(wait * (spread or 1.0))
            else:
                # A local share has other numbers than its limit: only its end is known.
                reset = row[3]
                after = reset if degraded else kernels.grows_after(shown.numbers, row[1], row[3])
            quotas.append((shown, row[1], after, reset, row))
        pairs = plan.fixed.copy()
        for write in self._writers if quotas else ():
            write(pairs, plan, quotas)
        pairs += told
        return pairs

    def suit(self, status: int, headers: Iterable[tuple[str, str]]) -> bool:
        """Return True if the response to an allowed request may carry the fields, judging by its status and headers.

        Args:
            status: The status of the response.
            headers: The headers of the response.

        Examples:
            >>> from ratebound.http import Headers
            >>> Headers().suit(200, [("Cache-Control", "public, max-age=600")])
            False
        """
        return self.cacheable == "send" or not (is_redirect(status) or is_shareable(headers))

    def _plan(self, asks: Group) -> HeaderPlan:
        identity = id(asks[0][1]) if len(asks) == 1 else tuple([id(ask[1]) for ask in asks])
        plan = self._plans.get(identity)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
                self._usual_plans.clear()
            held = [limits for _, limits, *_ in asks]
            shown = told_apart([self.shown(limit) for limits in held for limit in configured(limits)])
            if any(isinstance(limits, LoweredLimits) for limits in held):
                asked = [limit for limits in held for limit in limits]
                shown = [Shown(one.limit, one.name, limit) for one, limit in zip(shown, asked, strict=True)]
            plan = HeaderPlan(held, shown, self.styles)
            self._plans[identity] = plan
            if plan.is_usual:
                self._usual_plans[identity] = plan
        return plan

    def retry_after(self, wait: int | None, now: int | None = None) -> Pairs:
        """Return the field that says how long to wait; nothing if no wait is known.

        Args:
            wait: The time to wait in microseconds. It is rounded up to seconds.
            now: The time in microseconds since 1970, for a date. None means the time of this machine.

        Examples:
            >>> from ratebound.http import Headers
            >>> Headers().retry_after(1_500_000)
            [('Retry-After', '2')]
        """
        if wait is None:
            return []
        if self.is_dated:
            now = time.time_ns() // 1000 if now is None else now
            return [("Retry-After", formatdate(float(-(-(now + wait) // SECOND)), usegmt=True))]
        return [("Retry-After", str(-(-wait // SECOND)))]

    def _draft_11(self, pairs: Pairs, plan: HeaderPlan, quotas: list[Quota]) -> None:
        if not plan.unique:
            quotas = list(nearest(quotas, lambda quota: quota[0].name).values())
        texts = [remaining_text(shown.quoted, left, after) for shown, left, after, _, _ in quotas]
        pairs.append(("RateLimit", ", ".join(texts)))

    def _draft_07(self, pairs: Pairs, plan: HeaderPlan, quotas: list[Quota]) -> None:
        shown, left, _, reset, _ = decisive(quotas)
        until = "" if reset is None else f", reset={-(-reset // SECOND)}"
        pairs.append(("RateLimit", f"limit={shown.quota}, remaining={left}{until}"))

    def _draft_06(self, pairs: Pairs, plan: HeaderPlan, quotas: list[Quota]) -> None:
        shown, left, _, reset, _ = decisive(quotas)
        _add_three(pairs, str(shown.quota), left, reset)

    def _draft_03(self, pairs: Pairs, plan: HeaderPlan, quotas: list[Quota]) -> None:
        shown, left, _, reset, _ = decisive(quotas)
        _add_three(pairs, f"{shown.quota}, {plan.policies}" if plan.policies else str(shown.quota), left, reset)

    def _x_ratelimit(self, pairs: Pairs, plan: HeaderPlan, quotas: list[Quota]) -> None:
        shown, left, _, reset, row = decisive(quotas)
        pairs += (("X-RateLimit-Limit", str(shown.quota)), ("X-RateLimit-Remaining", str(left)))
        if reset is not None:
            pairs.append(("X-RateLimit-Reset", str(-(-(row[5] + reset if self._epoch else reset) // SECOND))))

    def _kong(self, pairs: Pairs, plan: HeaderPlan, quotas: list[Quota]) -> None:
        for unit, (shown, left, *_) in nearest(quotas, lambda quota: quota[0].unit).items():
            if unit:
                pairs.append((f"X-RateLimit-Limit-{unit}", str(shown.quota)))
                pairs.append((f"X-RateLimit-Remaining-{unit}", str(left)))
        self._draft_06(pairs, plan, quotas)


def _add_three(pairs: Pairs, limit: str, left: int, reset: int | None) -> None:
    pairs += ((THREE[0], limit), (THREE[1], str(left)))
    if reset is not None:
        pairs.append((THREE[2], str(-(-reset // SECOND))))


def of_no_rate(shown: Shown, row: Row, spread: float) -> Quota:
    """Return the answer of a limit that is no rate. What remains may exceed the quota after a grant."""
    limit, wait = shown.limit, row[2]
    left = min(row[1], MAX_INTEGER)
    if limit.has_slots:
        is_told = limit.retry_us and not row[0]
        return shown, left, 0, int(limit.retry_us * spread) if is_told else None, row
    reset = int(wait * spread) if wait else row[3]
    return shown, left, reset, reset, row


def told_apart(shown: list[Shown]) -> list[Shown]:
    """Return the limits with unique names.

    Limits that share a name, like '5/minute as login; 20/hour as login', get their text added.
    """
    limits: dict[str, set[Limit]] = {}
    for quota in shown:
        limits.setdefault(quota.name, set()).add(quota.limit)
    return [
        Shown(quota.limit, f"{quota.name} {quota.limit.text}") if len(limits[quota.name]) > 1 else quota
        for quota in shown
    ]


def urgency(quota: Quota) -> tuple[bool, bool, float, int, int]:
    """Return a sort key: limits that deny come first, longest wait first; then those nearest to exhaustion; then slots
    that do not deny, and metered limits, which never do. It is the order of `Decision.limit`."""
    shown, left, _, _, row = quota
    if not row[0]:
        return (False, False, float("-inf") if row[2] is None else -row[2], 0, 0)
    return (True, shown.limit.is_told_last, 0, left, -row[3])


def decisive(quotas: list[Quota]) -> Quota:
    """Return the limit to report if a header has room for only one; the same as `Decision.limit`."""
    return quotas[0] if len(quotas) == 1 else min(quotas, key=urgency)


def nearest(quotas: list[Quota], group: Callable[[Quota], str]) -> dict[str, Quota]:
    """Return the most urgent limit for each name that `group` gives."""
    found: dict[str, Quota] = {}
    for quota in quotas:
        name = group(quota)
        found[name] = min(found.get(name, quota), quota, key=urgency)
    return found


def checked_styles(styles: str | Iterable[str]) -> tuple[str, ...]:
    """Return the styles as a tuple. Raises ValueError for an unknown style, or for two that share a field."""
    chosen = [style for style in ([styles] if isinstance(styles, str) else styles) if style != "none"]
    writers: dict[str, str] = {}
    for style in chosen:
        if style not in FIELDS:
            raise ValueError(f"unknown header style {style!r}: expected one of {', '.join(FIELDS)}, none")
        for field in FIELDS[style]:
            other = writers.setdefault(field, style)
            if other != style or chosen.count(style) > 1:
                raise ValueError(f"the header styles {other} and {style} both write {field}: choose one")
    return tuple(chosen)


def expose(pairs: Pairs) -> Pairs:
    """Return the field that lets scripts of another origin read these fields, for requests with an Origin.

    Args:
        pairs: The fields, as `Headers.pairs` returns them.

    Examples:
        >>> from ratebound.http import expose
        >>> expose([("RateLimit", '"api";r=9;t=60')])
        [('Access-Control-Expose-Headers', 'RateLimit')]
    """
    names = ", ".join(dict.fromkeys(name for name, _ in pairs))
    return [("Access-Control-Expose-Headers", names)] if names else []
