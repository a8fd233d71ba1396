"""The middleware: for threads and for tasks, side by side."""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured

from ratebound.web.answer import Refused
from ratebound.web.django.keeper import keeper
from ratebound.web.django.login import remember
from ratebound.web.django.request import STATE, State, at_hand, leave, leave_task, out_of_hand, paths_of
from ratebound.web.django.waiting import apart


class RateLimitMiddleware:
    """All that the policy and the views say, for threads and for tasks. A view sees the decision in
    `request.ratebound`."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        mistakes = keeper().mistakes()  # told when the server starts, with what is wrong with the settings
        if mistakes:
            raise ImproperlyConfigured("\n".join(mistakes))
        self.process_view: Callable[..., Any]
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self._respond, self.process_view = self._task, self._task_door
        else:
            self._respond, self.process_view = self._thread, self._door

    def __call__(self, request: Any) -> Any:
        return self._respond(request)

    def _thread(self, request: Any) -> Any:
        state = _begun(request)
        gate = state.keep.gate
        if state.facts.has_early:
            hand = at_hand(request)
            try:
                state.answer = request.ratebound = gate.before(state.view, stage="early")
            finally:
                out_of_hand(hand)
            if isinstance(state.answer, Refused):
                return leave(gate, request, state, _rendered(state.keep.refusal(request, state.answer)))
        response = self._get_response(request)
        if not state.late and not isinstance(state.answer, Refused):
            refusal = self._door(request, None)
            state.bypass_view(request)
            response = response if refusal is None else _rendered(refusal)
        return leave(gate, request, state, response)

    def _door(self, request: Any, callback: Any, *_: Any) -> Any:
        state: State = getattr(request, STATE)
        keep, view = state.keep, state.view
        gate = keep.gate
        _, endpoint, reads_body = keep.begin(request, state, callback)
        if state.facts.wants_user(endpoint):
            view.user = keep.user(request)
        door = gate.door(endpoint)
        if reads_body or door.reads_body:
            view.body = keep.body(request)
        earlier = None if state.answer is None else state.resume()
        if door.looks:
            hand = at_hand(request)
            try:
                answer = gate.through(door, view, stage="late", earlier=earlier)
            finally:
                out_of_hand(hand)
        else:
            answer = gate.through(door, view, stage="late", earlier=earlier)
        state.decide(request, answer)
        if isinstance(answer, Refused):
            return keep.refusal(request, answer)
        if door.terms.charges:
            remember(request)
        if answer.delay:
            gate.sleep(answer)
        return None

    async def _task(self, request: Any) -> Any:
        state = _begun(request)
        keep, gate = state.keep, state.keep.tasks
        if state.facts.has_early:
            hand = at_hand(request, is_task=True)
            try:
                state.answer = request.ratebound = await gate.before(state.view, stage="early")
            finally:
                out_of_hand(hand)
            if isinstance(state.answer, Refused):
                refusal = await _task_rendered(await keep.task_refusal(request, state.answer))
                return await leave_task(gate, keep.gate, request, state, refusal)
        response = await self._get_response(request)
        if not state.late and not isinstance(state.answer, Refused):
            refusal = await self._task_door(request, None)
            state.bypass_view(request)
            response = response if refusal is None else await _task_rendered(refusal)
        return await leave_task(gate, keep.gate, request, state, response)

    async def _task_door(self, request: Any, callback: Any, *_: Any) -> Any:
        state: State = getattr(request, STATE)
        keep, view = state.keep, state.view
        gate = keep.tasks
        _, endpoint, reads_body = keep.begin(request, state, callback)
        if state.facts.wants_user(endpoint):
            view.user = await keep.task_user(request)
        door = gate.door(endpoint)
        if reads_body or door.reads_body:
            view.body = keep.body(request)
        earlier = None if state.answer is None else state.resume()
        if door.looks:
            hand = at_hand(request, is_task=True)
            try:
                answer = await gate.through(door, view, stage="late", earlier=earlier)
            finally:
                out_of_hand(hand)
        else:
            answer = await gate.through(door, view, stage="late", earlier=earlier)
        state.decide(request, answer)
        if isinstance(answer, Refused):
            return await keep.task_refusal(request, answer)
        if door.terms.charges:
            remember(request)
        if answer.delay:
            await gate.sleep(answer)
        return None


def _begun(request: Any) -> State:
    state = State(request, watched=True)
    setattr(request, STATE, state)
    state.keep = keeper()
    state.facts = state.keep.facts
    if state.facts.has_early and state.facts.has_paths:
        state.view.reread(paths_of(request))
    return state


def _rendered(response: Any) -> Any:
    """A refusal that does not come from where Django renders."""
    return response if getattr(response, "is_rendered", True) else response.render()


async def _task_rendered(response: Any) -> Any:
    return response if getattr(response, "is_rendered", True) else await apart(response.render)
