"""The middleware: for threads and for tasks, side by side."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from ratekeeper.web.answer import Refused
from ratekeeper.web.django.keeper import keeper
from ratekeeper.web.django.request import STATE, State, awaited, leave, leave_task, within


class RateKeeperMiddleware:
    """All that the policy and the views say, for threads and for tasks. A view sees the decision in
    `request.ratekeeper`."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        keeper()  # what is wrong with the settings is told when the server starts
        self.process_view: Callable[..., Any]
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self._respond, self.process_view = self._task, self._task_door
        else:
            self._respond, self.process_view = self._thread, self._door

    def __call__(self, request: Any) -> Any:
        return self._respond(request)

    def _thread(self, request: Any) -> Any:
        keep, state = keeper(), State(request, in_middleware=True)
        setattr(request, STATE, state)
        if keep.facts.has_early:
            state.answer = request.ratekeeper = within(request, keep.gate.before, state.view, stage="early")
        if isinstance(state.answer, Refused):
            return leave(keep.gate, state, keep.refusal(request, state.answer))
        response = self._get_response(request)
        if not state.late:
            response = self._door(request, None) or response
        return leave(keep.gate, state, response)

    def _door(self, request: Any, callback: Any, *_: Any) -> Any:
        keep, state = keeper(), getattr(request, STATE)
        endpoint = keep.begin(request, callback)
        if keep.facts.wants_user(endpoint):
            state.view.user = keep.user(request)
        if keep.gate.reads_body(endpoint):
            state.view.body = keep.body(request)
        answer = within(request, keep.gate.before, state.view, endpoint, stage="late", earlier=state.passed)
        state.answer = request.ratekeeper = answer
        if isinstance(answer, Refused):
            return keep.refusal(request, answer)
        keep.gate.sleep(answer)
        return None

    async def _task(self, request: Any) -> Any:
        keep, state = keeper(), State(request, in_middleware=True)
        setattr(request, STATE, state)
        if keep.facts.has_early:
            state.answer = request.ratekeeper = await within(request, keep.tasks.before, state.view, stage="early")
        if isinstance(state.answer, Refused):
            return await leave_task(keep.tasks, keep.gate, state, await awaited(keep.refusal(request, state.answer)))
        response = await self._get_response(request)
        if not state.late:
            response = await self._task_door(request, None) or response
        return await leave_task(keep.tasks, keep.gate, state, response)

    async def _task_door(self, request: Any, callback: Any, *_: Any) -> Any:
        keep, state = keeper(), getattr(request, STATE)
        endpoint = keep.begin(request, callback)
        if keep.facts.wants_user(endpoint):
            state.view.user = await keep.task_user(request)
        if keep.tasks.reads_body(endpoint):
            state.view.body = keep.body(request)
        answer = await within(request, keep.tasks.before, state.view, endpoint, stage="late", earlier=state.passed)
        state.answer = request.ratekeeper = answer
        if isinstance(answer, Refused):
            return await awaited(keep.refusal(request, answer))
        await keep.tasks.sleep(answer)
        return None
