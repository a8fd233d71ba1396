"""The middleware: for threads and for tasks, side by side."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured

from ratebound.web.django.configuration import configured_limits
from ratebound.web.django.flows import add_headers, check_late, conclude, respond, word_rejection
from ratebound.web.django.request import VISIT, request_view
from ratebound.web.passed import COMPLETE, Passed
from ratebound.web.rejected import Rejected
from ratebound.web.visit import Visit, run, run_async


class RateLimitMiddleware:
    """Limits of the policy and of views, for threads and for tasks. A view sees the decision in `request.ratebound`."""

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
            return run_async(respond(request, visit, limits.tasks, self._get_response))
        if limits.gate.has_early:
            return run(respond(request, visit, limits.threads, self._get_response))
        response, answer = self._get_response(request), visit.answer
        if isinstance(answer, Passed) and not (answer.may_settle or visit.part is not None or response.streaming):
            answer.ended = COMPLETE
            return add_headers(request, answer, response)
        return run(conclude(request, visit, limits.threads, response))

    def _check_view(self, request: Any, callback: Any, *_: Any) -> Any:
        limits, visit = configured_limits(), getattr(request, VISIT)
        gate, view = limits.gate, visit.view
        rules = limits.rules_for(request, visit, gate, callback)
        if not rules.is_plain or rules.uses_request or rules.terms.charges or visit.answer is not None:
            return run(check_late(request, visit, limits.threads, rules))
        if rules.wants_user:
            view.user = limits.find_user(request)
        verdict = gate.decide_by(rules.compiled, view, rules.last_stage)
        answer = visit.answer = request.ratebound = rules.answer(view, [verdict])
        if isinstance(answer, Rejected):
            return run(word_rejection(request, answer, limits.threads))
        if visit.failed is not None:
            answer.failed = visit.failed
        if answer.delay:
            gate.sleep(answer)
        return None

    async def _check_view_async(self, request: Any, callback: Any, *_: Any) -> Any:
        limits, visit = configured_limits(), getattr(request, VISIT)
        caller = limits.tasks
        rules = limits.rules_for(request, visit, caller.gate, callback)
        return await run_async(check_late(request, visit, caller, rules))
