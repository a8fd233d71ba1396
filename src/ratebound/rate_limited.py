"""The exception of a denial, for callers that wait."""

from typing import NamedTuple

from ratebound.decision import Decision
from ratebound.errors import RateboundError


class Patience(NamedTuple):
    """The longest time that a wait may take, and the argument that gave it: `timeout` or `max_delay`."""

    argument: str
    seconds: float
    microseconds: int


class RateLimited(RateboundError):
    """A denial, raised by `wait`, `acquire`, `reserve` and decorators.

    Args:
        decision: The denial. It has the limit and the wait.
        patience: How long the caller would have waited; None if it did not wait.

    Examples:
        >>> from ratebound import Limiter, RateLimited
        >>> limiter = Limiter("1/hour")
        >>> decision = limiter.hit("user:42")
        >>> try:
        ...     with limiter.reserve("user:42", 1):
        ...         pass
        ... except RateLimited as error:
        ...     print(error.decision.limit, error.decision.remaining)
        1/hour 0
    """

    def __init__(self, decision: Decision, patience: Patience | None = None) -> None:
        super().__init__(decision, patience)
        self.decision = decision
        self.patience = patience

    def __str__(self) -> str:
        if self.decision.unavailable:
            return "the storage is out of reach and failure is 'closed'; see decision.degraded for the reason"
        limit, wait = self.decision.limit, self.decision.retry_after
        if wait is None:
            return f"over the limit {limit}; no wait can help because the cost exceeds the limit"
        reason = f"over the limit {limit}"
        if limit.is_penalty:
            reason = f"blocked by '{limit}'"
        elif limit.is_distinct:
            reason = f"too many different values of '{limit.values}', limited by '{limit}'"
        if self.patience is None:
            if limit.has_slots:
                return f"all slots of '{limit}' are taken; set timeout= to wait for one"
            return f"{reason}; retry in {wait:.6g} s"
        argument, given, _ = self.patience
        longer = "a longer timeout=" if argument == "timeout" else "timeout=, or max_delay=math.inf"
        if limit.has_slots:
            return f"all slots of '{limit}' are taken: none was released within {argument}={given} s; set {longer}"
        late = "the block would not end" if limit.is_penalty else "it would not pass"
        return f"{reason}: {late} within {argument}={given} s; retry in {wait:.6g} s, or set {longer}"
