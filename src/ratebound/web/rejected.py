"""A request that goes no further: the response that says so, in our words or in the application's."""

from collections.abc import Callable, Mapping
from typing import Any

from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.http import Response
from ratebound.http.denial import kind_of, longest_wait
from ratebound.http.header_plan import Pairs
from ratebound.policy import RequestView, Verdict


class Rejected:
    """A request that goes no further. `headers` has all but Content-Length; a response to HEAD has no body.

    Args:
        verdict: The verdict.
        response: The response that the policy gives.
        description: The reason in a sentence for the client: the limit's own message, if it has one.
        breach: The limit's own `on_breach`.

    Examples:
        >>> from ratebound.policy import RequestView
        >>> from ratebound.web import WebGate
        >>> gate = WebGate("1/minute")
        >>> request = RequestView("GET", "/orders", peer="203.0.113.7")
        >>> _, rejected = gate.before(request), gate.before(request)
        >>> rejected.status, rejected.retry_after > 59, dict(rejected.headers)["Content-Type"]
        (429, True, 'application/problem+json')
    """

    __slots__ = ("body", "breach", "description", "headers", "status", "verdict")

    def __init__(
        self, verdict: Verdict, response: Response, description: str, breach: Callable[..., Any] | None = None
    ) -> None:
        self.verdict = verdict
        self.status, self.headers, self.body = response
        self.description = description
        self.breach = breach

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Rejected({self.status}, {self.verdict!r})"

    @property
    def decision(self) -> Decision | None:
        """The decision of the limits; None if the client is blocked by name."""
        return self.verdict.decision

    @property
    def fields(self) -> Pairs:
        """The headers for a response in the application's own words: all but the type of our body."""
        return [pair for pair in self.headers if pair[0] != "Content-Type"]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request passes, if alone; None when no wait can help, or none is known."""
        decision = self.verdict.decision
        wait = self.verdict.block_wait if decision is None else longest_wait(decision, kind_of(decision))
        return None if wait is None else wait / SECOND

    @property
    def body_type(self) -> str:
        """The Content-Type of our own body."""
        return next(value for name, value in self.headers if name == "Content-Type")


def rejection_of(verdict: Verdict, view: RequestView, breaches: Mapping[str, Callable[..., Any]]) -> Rejected:
    """Return the rejection that a verdict stands for. `breaches` has each rule's own `on_breach`, by name."""
    form = verdict.policy.rejection_format
    rule, message, documentation = verdict.told()
    if verdict.decision is not None:
        rejection, fields = form._of_decision(verdict.decision, message, documentation)
    elif verdict.kind == "shed":
        rejection, fields = form._of_overload()
    else:
        rejection, fields = form._of_block(message, documentation, verdict.block_wait)
    response = form._written(rejection, fields, view.headers)
    return Rejected(verdict, response, rejection.detail, None if rule is None else breaches.get(rule.name))
