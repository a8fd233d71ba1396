"""The middleware: for threads and for tasks, side by side."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured

from ratebound.flow import run, run_async
from ratebound.web.django.configuration import DASHBOARDS, configured_limits
from ratebound.web.django.flows import (
    Caller,
    add_headers,
    check_late,
    conclude,
    plain_rejection,
    respond,
    word_rejection,
)
from ratebound.web.django.request import VISIT, request_view
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.load_meter import LoadMeter
from ratebound.web.passed import Passed
from ratebound.web.passed_fields import COMPLETE
from ratebound.web.rejected import Rejected
from ratebound.web.visit import Visit


class RateLimitMiddleware:
    """Limits of the policy and of views, for threads and for tasks. A view sees the decision in `request.ratebound`.

    It stands in MIDDLEWARE, and its limits in RATEBOUND of the settings.

    Args:
        get_response: The next middleware, or the view.

    Raises:
        ImproperlyConfigured: The settings, or the limits of a view, are invalid. The message has all mistakes.

    Examples:
        >>> MIDDLEWARE = ["ratebound.web.django.RateLimitMiddleware"]
        >>> RATEBOUND = {"policy": "100/minute", "storage": "redis://localhost:6379/0"}
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        mistakes = configured_limits().mistakes()  # raised when the server starts
        if mistakes:
            raise ImproperlyConfigured("\n".join(mistakes))
        self._is_async = iscoroutinefunction(get_response)
        self.process_view: Callable[..., Any] = self._check_view
        if self._is_async:
            markcoroutinefunction(self)
            self.process_view = self._check_view_async

    def __call__(self, request: Any) -> Any:
        limits, visit = configured_limits(), Visit()
        visit.view = request_view(request)
        visit.is_watched = True
        setattr(request, VISIT, visit)
        if self._is_async:
            caller = limits.tasks
            meter = caller.gate.meter
            if meter is None:
                return self._respond_async(request, visit, caller)
            return self._metered_async(request, visit, caller, meter)
        caller = limits.threads
        meter = caller.gate.meter
        return self._respond(request, visit, caller) if meter is None else self._metered(request, visit, caller, meter)

    def _metered(self, request: Any, visit: Visit, caller: Caller, meter: LoadMeter) -> Any:
        if caller.limits.leads_to_dashboard(request):
            return self._respond(request, visit, caller)
        entered = meter.enter(lambda: visit.view)
        if isinstance(entered, Rejected):
            return _shed(request, entered)
        try:
            response = self._respond(request, visit, caller)
            entered.answered()
            return response
        finally:
            entered.leave()

    async def _metered_async(self, request: Any, visit: Visit, caller: Caller, meter: LoadMeter) -> Any:
        if caller.limits.leads_to_dashboard(request):
            return await self._respond_async(request, visit, caller)
        entered = meter.enter(lambda: visit.view)
        if isinstance(entered, Rejected):
            return _shed(request, entered)
        try:
            response = await self._respond_async(request, visit, caller)
            entered.answered()
            return response
        finally:
            entered.leave()

    def _respond(self, request: Any, visit: Visit, caller: Caller) -> Any:
        try:
            if caller.gate.has_early:
                return run(respond(request, visit, caller, self._get_response))
            response = self._get_response(request)
            if _is_plain_response(visit, response):
                return add_headers(request, visit.answer, response)
            return run(conclude(request, visit, caller, response))
        except BaseException:
            run(visit.leave(caller.gate))
            raise

    def _check_view(self, request: Any, callback: Any, *_: Any) -> Any:
        limits, visit = configured_limits(), getattr(request, VISIT)
        gate, view = limits.gate, visit.view
        rules = limits.rules_for(request, visit, gate, callback)
        if not _is_plain(rules, visit):
            return None if _is_spared(callback, visit) else run(check_late(request, visit, limits.threads, rules))
        if rules.wants_user:
            view.user = limits.find_user(request)
        answer = gate.plain.check_view(rules, view)
        if answer is None:
            if _is_spared(callback, visit):
                return None
            if not rules.is_direct:
                return run(check_late(request, visit, limits.threads, rules))
            if not rules.wants_user and gate.operators_name_users():
                view.user = limits.find_user(request)
            answer = rules.answer(view, [gate.decide_by(rules.compiled, view, rules.last_stage)])
        visit.answer = request.ratebound = answer
        if isinstance(answer, Rejected):
            return run(word_rejection(request, answer, limits.threads))
        if answer.delay:
            gate.sleep(answer)
        return None

    async def _respond_async(self, request: Any, visit: Visit, caller: Caller) -> Any:
        try:
            if caller.gate.has_early:
                return await run_async(respond(request, visit, caller, self._get_response))
            response = await self._get_response(request)
            if _is_plain_response(visit, response):
                return add_headers(request, visit.answer, response)
            return await run_async(conclude(request, visit, caller, response))
        except BaseException:
            await run_async(visit.leave(caller.gate))
            raise

    async def _check_view_async(self, request: Any, callback: Any, *_: Any) -> Any:
        limits, visit = configured_limits(), getattr(request, VISIT)
        caller = limits.tasks
        gate, view = caller.gate, visit.view
        rules = limits.rules_for(request, visit, gate, callback)
        if not _is_plain(rules, visit):
            return None if _is_spared(callback, visit) else await run_async(check_late(request, visit, caller, rules))
        if rules.wants_user:
            view.user = await limits.find_user_async(request)
        answer = gate.plain.check_view(rules, view)
        if answer is None:
            if _is_spared(callback, visit):
                return None
            if not rules.is_direct:
                return await run_async(check_late(request, visit, caller, rules))
            if not rules.wants_user and await gate.operators_name_users():
                view.user = await limits.find_user_async(request)
            answer = rules.answer(view, [await gate.decide_by(rules.compiled, view, rules.last_stage)])
        visit.answer = request.ratebound = answer
        if isinstance(answer, Rejected):
            return await run_async(word_rejection(request, answer, caller))
        if answer.delay:
            await gate.sleep(answer)
        return None


def _shed(request: Any, rejected: Rejected) -> Any:
    response = plain_rejection(request, rejected)
    for name, value in rejected.fields:
        response.headers[name] = value
    return response


def _is_spared(callback: Any, visit: Visit) -> bool:
    """Return True, and check nothing yet, if the view is the dashboard. It notes that it was reached: if a middleware
    answers in its place, that response is checked."""
    if callback not in DASHBOARDS:
        return False
    visit.is_spared, visit.is_late = True, False
    return True


def _is_plain(rules: EndpointRules, visit: Visit) -> bool:
    """Return True if one decision is enough, which needs no body and no function of the application."""
    is_first = visit.answer is None and visit.failed is None
    return is_first and rules.is_plain and not rules.uses_request and not rules.terms.charges


def _is_plain_response(visit: Visit, response: Any) -> bool:
    """Return True, and end the request, if its response needs only our headers."""
    answer = visit.answer
    if isinstance(answer, Passed) and visit.part is None and not answer.may_settle and not response.streaming:
        answer.ended = COMPLETE
        return True
    return False
