"""One Django request, for threads and tasks alike: how its rules are checked, rejected and settled.

Every function here that ends in a Flow is driven by `run` in a thread and by `run_async` in a task, see web/visit.py.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpResponse

from ratebound.flow import Flow, Step, run, run_async
from ratebound.http.caching import CACHING
from ratebound.policy.model.rule import Stage
from ratebound.uncancelled import uncancelled
from ratebound.web.asgi_types import STATE
from ratebound.web.django.calling import in_loop, status_of
from ratebound.web.django.login import remember
from ratebound.web.django.request import at_hand, paths_of
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.response_headers import EXPOSE, header_changes, plain_fields
from ratebound.web.response_tracker import ResponseTracker
from ratebound.web.visit import Visit
from ratebound.web.wsgi import PASSED


class Caller(NamedTuple):
    """The limits of the settings, and how flows call what may block: from a thread or from a task."""

    limits: Any
    gate: Any
    call: Callable[..., Any]
    find_user: Callable[[Any], Any]
    is_task: bool


def respond(request: Any, visit: Visit, caller: Caller, get_response: Callable[[Any], Any]) -> Flow[Any]:
    """Return the response to a request: early rules, then the view, which is behind the late rules."""
    rules = caller.gate.rules_for(None)
    if rules.has_early and caller.limits.leads_to_dashboard(request):
        visit.is_spared = True
    elif rules.has_early:
        if rules.has_paths:
            visit.view.reread(paths_of(request))
        response = yield from check_early(request, visit, caller, rules)
        if response is not None:
            return (yield from finish(request, visit, caller, response))
    return (yield from conclude(request, visit, caller, (yield partial(get_response, request))))


def conclude(request: Any, visit: Visit, caller: Caller, response: Any) -> Flow[Any]:
    """Finish a response. If a middleware has answered and no view was reached, check the late rules now."""
    if not visit.is_late and not isinstance(visit.answer, Rejected):
        rules = caller.limits.rules_for(request, visit, caller.gate, None)
        rejection = yield from render((yield from check_late(request, visit, caller, rules)), caller)
        response = response if rejection is None else rejection
        passed = visit.passed  # django-cors-headers answers every preflight that it is responsible for
        if passed is not None and getattr(request, "_cors_enabled", False) and visit.view.is_preflight:
            passed.bypass_handler()
    return (yield from finish(request, visit, caller, response))


def check_early(request: Any, visit: Visit, caller: Caller, rules: EndpointRules) -> Flow[Any]:
    """Check the early rules. Return the response of a rejection, or None."""
    with at_hand(request, is_task=caller.is_task):
        answer = yield from visit.check(caller.gate, rules, visit.view, "early")
    request.ratebound = answer
    if isinstance(answer, Passed):
        return None
    return (yield from render((yield from word_rejection(request, answer, caller)), caller))


def check_late(request: Any, visit: Visit, caller: Caller, rules: EndpointRules) -> Flow[Any]:
    """Check all rules but the early ones. Return the response of a rejection, or None."""
    with at_hand(request, is_task=caller.is_task):
        stage: Stage | None = None if visit.is_spared else "late"  # None: its route leads to something else after all
        answer = yield from visit.check(caller.gate, rules, visit.view, stage, **_sources(request, caller))
    request.ratebound = answer
    if isinstance(answer, Rejected):
        return (yield from word_rejection(request, answer, caller))
    if answer.may_settle:
        remember(request)
    return None


def check_part(request: Any, visit: Visit, caller: Caller, rules: EndpointRules, limits: Any) -> Flow[Any]:
    """Check limits of a function that the request runs. Return the response of a rejection, or None."""
    with at_hand(request, limits, is_task=caller.is_task):
        answer = yield from visit.check_part(caller.gate, rules, visit.view, **_sources(request, caller))
    if isinstance(answer, Passed):
        request.ratebound = visit.answer
        if answer.may_settle:
            remember(request)
        return None
    request.ratebound = answer
    try:
        response = yield from word_rejection(request, answer, caller)
    except Exception as error:
        visit.part_status = status_of(error)
        raise
    visit.part_status = response.status_code
    return response


def _sources(request: Any, caller: Caller) -> dict[str, Step]:
    return {
        "find_user": partial(caller.find_user, request),
        "read_body": partial(caller.limits.read_body, request),
    }


def word_rejection(request: Any, rejected: Rejected, caller: Caller) -> Flow[Any]:
    """Return the response of `on_breach`, of `handler429` in the root URLconf, or our own."""
    for words in caller.limits.own_words(rejected):
        response = yield partial(caller.call, words, request, rejected)
        if response is not None:
            return response
    return plain_rejection(request, rejected)


def plain_rejection(request: Any, rejected: Rejected) -> HttpResponse:
    """Return the response of a rejection in our own words, without the headers of limits."""
    body = b"" if request.method == "HEAD" else rejected.body
    response = HttpResponse(body, status=rejected.status, content_type=rejected.body_type)
    response.headers["Content-Length"] = str(len(rejected.body))
    return response


def render(response: Any, caller: Caller) -> Flow[Any]:
    """Render a response that does not pass through the part of Django that renders."""
    if response is not None and not getattr(response, "is_rendered", True):
        response = yield partial(caller.call, response.render)
    return response


def finish(request: Any, visit: Visit, caller: Caller, response: Any) -> Flow[Any]:
    """Put our headers on a response, whoever made it, and settle its cost if that depends on the result."""
    tracker = ResponseTracker(visit, counts=request.method != "HEAD")
    had_part = visit.part is not None
    yield from tracker.start(caller.gate, response.status_code, response.headers.items())
    for name in tracker.hidden:
        del response.headers[name]  # if it is there
    if had_part:
        request.ratebound = visit.answer
    if response.streaming:
        yield from _track_stream(request, visit, tracker, caller, response)
    elif (tracker.is_held or visit.holds) and not getattr(response, "is_rendered", True):
        # A template's response, or one of the REST framework, has no content before Django renders it, in a thread.
        threads = caller.limits.threads
        _leave_at_close(request, tracker, caller, response)
        response.add_post_render_callback(lambda rendered: run(finish(request, visit, threads, rendered)))
        return response
    else:
        if tracker.is_held:
            tracker.add(len(response.content))
        yield from tracker.end(caller.gate)
        yield from visit.leave(caller.gate)
    return add_headers(request, visit.answer, response)


def fail(request: Any, visit: Visit, caller: Caller, error: Exception) -> Flow[None]:
    """Finish a request whose response Django will make of an error, where no middleware of ours sees it."""
    tracker = ResponseTracker(visit)
    yield from tracker.start(caller.gate, status_of(error))
    request.ratebound = visit.answer
    yield from tracker.end(caller.gate)
    yield from visit.leave(caller.gate)


def _track_stream(request: Any, visit: Visit, tracker: ResponseTracker, caller: Caller, response: Any) -> Flow[None]:
    """Settle a stream at its end: until then, the function that makes it may still set its cost. Its slots are released
    at its end, or when Django closes the response, which over ASGI it does not after every error. Then one that has
    broken off is settled by what was sent."""
    passed = visit.passed
    if passed is None or all(verdict.decision is None for verdict in passed.verdicts):
        return
    _leave_at_close(request, tracker, caller, response)
    is_needed = tracker.is_held or (visit.holds and hasattr(request, "scope"))
    if getattr(response, "file_to_stream", None) is not None and not is_needed:
        yield from tracker.end(caller.gate)  # the server sends the file by itself
        return
    chunks = response.streaming_content
    response.streaming_content = (
        _count_async(tracker, caller, chunks) if response.is_async else _count(tracker, caller.limits.gate, chunks)
    )


def _count(tracker: ResponseTracker, gate: Any, chunks: Iterable[bytes]) -> Any:
    try:
        for chunk in chunks:
            tracker.add(len(chunk))
            yield chunk
        run(tracker.end(gate))  # not reached when the client goes away
    except GeneratorExit:
        raise  # the collector may raise it at any moment; Django closes the response
    except BaseException:
        run(_abandon(tracker, gate))
        raise
    run(tracker.visit.leave(gate))


async def _count_async(tracker: ResponseTracker, caller: Caller, chunks: Any) -> Any:
    try:
        async for chunk in chunks:
            tracker.add(len(chunk))
            yield chunk
        if caller.is_task:
            await run_async(tracker.end(caller.gate))
        else:
            await sync_to_async(run)(tracker.end(caller.gate))
    finally:
        if _has_end(tracker):
            await uncancelled(sync_to_async(run, thread_sensitive=False)(_abandon(tracker, caller.limits.gate)))


def _has_end(tracker: ResponseTracker) -> bool:
    """Return True if something is to be done at the end of a response, however it ends."""
    passed = tracker.visit.passed
    return tracker.visit.holds or (passed is not None and passed.settles)


def _abandon(tracker: ResponseTracker, gate: Any) -> Flow[None]:
    """Settle a response that will not be complete, unless it is, and release its slots."""
    yield from tracker.break_off(gate)
    yield from tracker.visit.leave(gate)


async def leave_from_task(visit: Visit, caller: Caller) -> None:
    """Release the slots of a request in a thread, also if this task is cancelled."""
    if visit.holds:
        await uncancelled(sync_to_async(run, thread_sensitive=False)(visit.leave(caller.limits.gate)))


def _leave_at_close(request: Any, tracker: ResponseTracker, caller: Caller, response: Any) -> None:
    """Release slots, and settle what has broken off, when a response is closed, or the request: Django closes the
    request with whatever response it sends, also if middleware replaces this one. Over ASGI it closes neither if its
    task fails or is cancelled."""
    if _has_end(tracker):
        leave = partial(_leave, tracker, caller)
        response._resource_closers.append(leave)
        request.close = _ClosedRequest(request.close, leave)
        task = asyncio.current_task() if in_loop() else None
        if task is not None:
            task.add_done_callback(partial(_leave_if_failed, leave))


def _leave(tracker: ResponseTracker, caller: Caller) -> None:
    run(_abandon(tracker, caller.limits.gate))


def _leave_if_failed(leave: Callable[[], None], task: "asyncio.Task[Any]") -> None:
    """Release slots, in a thread, if the task of a request has failed. A task that has ended well may be one that only
    returns the response to middleware."""
    if task.cancelled() or task.exception() is not None:
        asyncio.get_running_loop().run_in_executor(None, leave)


class _ClosedRequest:
    """The `close` of a request: it also releases the slots. It is forgotten when it is called, as it is a cycle."""

    __slots__ = ("_close", "_leave")

    def __init__(self, close: Callable[[], Any], leave: Callable[[], None]) -> None:
        self._close: Callable[[], Any] | None = close
        self._leave = leave

    def __call__(self) -> None:
        close, self._close = self._close, None
        try:
            if close is not None:
                close()
        finally:
            self._leave()


def add_headers(request: Any, answer: Passed | Rejected | None, response: Any) -> Any:
    """Put our headers on a response, and return it."""
    if answer is None:
        return response
    headers, status = response.headers, response.status_code
    caching = [(name, headers[name]) for name in CACHING if name in headers]
    if caching or 300 <= status < 400 or isinstance(answer, Rejected):
        fields, dropped = header_changes(answer, status, caching)
        for name in dropped:
            del headers[name]  # if it is there
    else:
        fields = plain_fields(answer, status)
    if fields:
        environ = getattr(request, "environ", None)
        if environ is not None:
            around = environ.get(PASSED)
        else:
            around = (getattr(request, "scope", {}).get("state") or {}).get(STATE)
        if around is not None:
            silence(around)
        for name, value in fields:
            if len(name) == len(EXPOSE) and name.lower() == EXPOSE and name in headers:
                before = headers[name]
                value = before if value in before else f"{before}, {value}"  # a response may be sent twice
            headers[name] = value
    return response
