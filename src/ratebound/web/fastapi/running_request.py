"""A request while its application runs, and the check of a decorated endpoint, which nearly always has been made."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ratebound.policy import RequestView
from ratebound.policy.match.request import Wire
from ratebound.web.asgi_plain_path import peer_of
from ratebound.web.passed import Passed
from ratebound.web.passed_fields import PassedFields
from ratebound.web.route_limit import RouteLimit
from ratebound.web.visit import Visit


class RunningRequest:
    """A request while its application runs, with all that it takes to check more limits.

    `body` is None where no limit may need it. `template` and `wire` are those of `view`, if it is not made yet.
    """

    __slots__ = ("_template", "_view", "_wire", "application", "body", "loop", "passed", "scope", "visit")

    def __init__(
        self,
        passed: Passed,
        visit: Visit,
        scope: Any,
        view: RequestView | None,
        body: Any,
        application: Any,
        loop: Any,
        wire: Wire | None = None,
        template: str | None = None,
    ) -> None:
        self.passed = passed
        self.visit = visit
        self.scope = scope
        self.body = body
        self.application = application
        self.loop = loop
        self._view = view
        self._wire = wire
        self._template = template

    @property
    def view(self) -> RequestView:
        """The request as it was at the innermost middleware."""
        if self._view is None:
            assert self._wire is not None
            scope = self.scope
            self._view = RequestView.on_demand(self._wire, scope, scope["method"], peer_of(scope), None, self._template)
        return self._view


Current = ContextVar[RunningRequest | None]


def was_checked(passed: PassedFields, limit: RouteLimit) -> bool:
    """Return True if a limit was checked, or another of its name, with which it shares one quota."""
    limits = passed.terms.limits
    return limit in limits or bool(limit.name and any(one.name == limit.name for one in limits))


class EndpointCheck:
    """The check of one limit when its endpoint is called: None if it was made, or else what `otherwise` returns.

    It is called with the endpoint, or with anything if it is of one endpoint.
    """

    __slots__ = ("_current", "_endpoint", "_limit", "_otherwise")

    def __init__(
        self, current: Current, limit: RouteLimit, otherwise: Callable[[Any], Any], endpoint: Any = None
    ) -> None:
        self._current = current
        self._limit = limit
        self._otherwise = otherwise
        self._endpoint = endpoint

    def of(self, endpoint: Any) -> "EndpointCheck":
        """Return the check of this endpoint alone."""
        return EndpointCheck(self._current, self._limit, self._otherwise, endpoint)

    def __call__(self, endpoint: Any) -> Any:
        running = self._current.get()
        if running is not None and was_checked(running.passed, self._limit):
            return None
        return self._otherwise(endpoint if self._endpoint is None else self._endpoint)
