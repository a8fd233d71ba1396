"""The life of a request, without I/O: early rules, all other rules, limits of parts of its handler, the end.

Flows yield functions without arguments, and are sent what these return. Nothing here knows a framework.
"""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final

from ratebound.flow import Flow, Step
from ratebound.policy import RequestView, Verdict
from ratebound.policy.model.rule import Stage
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import RouteLimit

log = logging.getLogger("ratebound")

Answer = Passed | Rejected

UNSETTLED: Final = "the cost of a request could not be settled: what was charged before stays charged"
UNRELEASED: Final = "the slots of a request could not be released: they end with their lease"
REJECTED_LATER: Final = "the request was rejected, and costs nothing"


class Visit:
    """A request under one gate: its decision so far, and what is left to do.

    `answer` is the decision so far. `part` is the rejection of a part of the handler, and `part_status` the status of
    its response: the response of the request shows whether the application answers with it or without it. `checked` has
    the declared limits that were checked in advance. `is_watched` is True if an adapter sees the end of the response.

    Adapters keep a visit in their request. A view that reads from that request is not kept in the visit longer than the
    request runs, or each request would be a cycle that only the collector finds.
    """

    view: RequestView
    answer: Answer | None = None
    part: Rejected | None = None
    part_status: int = 0
    checked: tuple[RouteLimit, ...] = ()
    around: object = None  # the decision of another gate around this one, which tells the client unless this one does
    is_begun: bool = False  # early rules were checked
    is_late: bool = False  # all rules were checked, not only the early ones
    is_watched: bool = False
    failed: bool | None = None  # the handler's judgement, before anything was decided
    measured_by: Any = None  # the pressure that waits for the result, until it is told
    passed_at: float = 0.0  # by time.perf_counter, if it is measured
    is_spared: bool = False  # it is routed to the dashboard, so that early rules were not checked
    reached_cors: bool = False  # a preflight has reached a middleware that answers all of them
    _pending: dict[Any, Any] | None = None
    took_slots: bool = False  # a check of rules, or of a part of the handler, has taken some

    @property
    def pending(self) -> dict[Any, Any]:
        """Limits that a task of this request is checking: others of its tasks wait for it."""
        if self._pending is None:
            self._pending = {}
        return self._pending

    @property
    def holds(self) -> bool:
        """True if the request has taken slots: then the adapter calls `leave` where the response ends."""
        answer = self.answer
        return self.took_slots or (isinstance(answer, Passed) and answer.may_settle and bool(answer.slots))

    @property
    def passed(self) -> Passed | None:
        """The decision that lets the request go ahead; None if nothing was checked, or if it was rejected."""
        return self.answer if isinstance(self.answer, Passed) else None

    def note(self, answer: Answer) -> None:
        """Note the decision for the whole request."""
        self.answer = answer
        if self.failed is not None and isinstance(answer, Passed):
            answer.failed = self.failed

    def check(
        self,
        gate: Any,
        rules: EndpointRules,
        view: RequestView,
        stage: Stage | None = None,
        *,
        find_user: Step | None = None,
        read_body: Step | None = None,
    ) -> Flow[Answer]:
        """Check the rules of one stage, or of both, and hold the request back as a leaky bucket demands.

        `find_user` and `read_body` are called only where a rule needs their result.
        """
        failure: BaseException | None = None
        try:
            yield from learn(gate, rules, view, find_user, read_body)
            answer = yield from check_rules(gate, rules, view, stage, self.passed)
            self.is_begun = True
            self.is_late = self.is_late or stage != "early"
            self.note(answer)
            if isinstance(answer, Passed):
                self.took_slots = self.took_slots or bool(answer.slots)
                if answer.delay:
                    yield partial(gate.sleep, answer)
                if rules.measured_by is not None and answer.verdict.kind != "exempt":  # it may be a poll that lasts
                    self._measure(rules.measured_by, answer)
        except GeneratorExit:
            raise
        except BaseException as error:  # a request that is cancelled while it is held back, for example
            failure = error
        if failure is not None:  # not within `except`: compiled generators crash if they yield there
            yield from self.leave(gate)
            try:
                raise failure
            finally:
                failure = None  # its traceback would be a cycle
        return answer

    def _measure(self, pressure: Any, passed: Passed) -> None:
        """Measure the time from now until the response starts."""
        self.measured_by = pressure
        self.passed_at = perf_counter()
        self.took_slots = passed.may_settle = True  # so that adapters show the start, and an exception instead of it

    def note_result(self, status: int) -> None:
        """Tell the pressure that measures the request, if any, that its response starts with this status."""
        pressure, self.measured_by = self.measured_by, None
        if pressure is not None and isinstance(self.answer, Passed):
            pressure.finished(perf_counter() - self.passed_at, status >= 500)

    def check_part(
        self,
        gate: Any,
        rules: EndpointRules,
        view: RequestView,
        *,
        find_user: Step | None = None,
        read_body: Step | None = None,
    ) -> Flow[Answer]:
        """Check limits of a part of the handler by themselves. A rejection is noted as `part`: the response shows
        whether the application answers with it."""
        yield from learn(gate, rules, view, find_user, read_body)
        answer: Answer = rules.answer(view, [(yield partial(gate.decide_by, rules.compiled, view, "late"))])
        if isinstance(answer, Passed) and answer.slots:
            if self._sees_end:
                self.took_slots = True
                gate.hold_slots(answer)
            else:
                yield from release_slots(gate, answer)
        self.note_part(answer)
        if isinstance(answer, Passed) and answer.delay:
            yield partial(gate.sleep, answer)
        return answer

    def note_part(self, answer: Answer) -> None:
        """Join the decision for a part of the handler to those before it."""
        if isinstance(answer, Rejected):
            self.part, self.part_status = answer, answer.status
            return
        answer.handle()
        before = self.answer
        if before is None:
            self.note(answer)
        elif isinstance(before, Passed):
            before.join(answer)

    @property
    def _sees_end(self) -> bool:
        """False if nobody will see the end of the response."""
        return self.answer is None or (isinstance(self.answer, Passed) and not self.answer.is_settled_at_once)

    def leave(self, gate: Any) -> Flow[None]:
        """Release the slots of the request. Adapters call it where the response ends, however it ends, and may call it
        again."""
        passed = self.passed
        if passed is not None:
            yield from release_slots(gate, passed)
        if self.measured_by is not None and isinstance(sys.exc_info()[1], Exception):  # there will be no response
            self.note_result(500)

    def conclude(self, gate: Any, status: int) -> Flow[None]:
        """Reject the whole request if the response has the status of a rejected part. All charges before it are given
        back."""
        if self.part is not None and self.part_status == status:
            yield from self.reject(gate, self.part)
        self.part = None

    def reject(self, gate: Any, rejected: Rejected) -> Flow[None]:
        """Reject a request that has passed until now: it costs nothing."""
        if isinstance(self.answer, Rejected):
            return
        before, self.answer = self.answer, rejected
        silence(self.around)
        if before is not None:
            before.tells = False
            yield from give_back(gate, before)
            before.end(REJECTED_LATER)


def learn(
    gate: Any, rules: EndpointRules, view: RequestView, find_user: Step | None, read_body: Step | None
) -> Flow[None]:
    """Find the user and read the body, if a rule needs them. Operators' blocks may need the user as well."""
    if find_user is not None and (rules.wants_user or (yield gate.operators_name_users)):
        view.user = yield find_user
    if read_body is not None and rules.reads_body and view.body is None:
        view.body = yield read_body


def check_rules(
    gate: Any, rules: EndpointRules, view: RequestView, stage: Stage | None, earlier: Passed | None
) -> Flow[Answer]:
    """Check the rules of a stage; without one the early stage, if there is any, and then the late one.

    `earlier` is what was decided before for this request. The new decision is joined to it, or if that is a rejection,
    what was charged before is given back.
    """
    if earlier is not None and rules.last_stage == "early":  # exempt from all other rules
        earlier.delay = 0.0
        return earlier
    verdicts: list[Verdict] = []
    failure: BaseException | None = None
    try:
        if rules.checks_early(stage):
            verdicts.append((yield partial(gate.decide_by, rules.compiled, view, "early")))
        if not verdicts or (verdicts[0].allowed and stage != "early"):
            verdicts.append((yield partial(gate.decide_by, rules.compiled, view, rules.last_stage)))
    except GeneratorExit:
        raise
    except BaseException as error:
        failure = error
    if failure is not None:
        yield from _release(gate, verdicts)
        try:
            raise failure
        finally:
            failure = None
    answer = rules.answer(view, verdicts)
    if isinstance(answer, Rejected):
        yield from _release(gate, verdicts[:-1])
        if earlier is not None:
            yield from give_back(gate, earlier)
            earlier.end(REJECTED_LATER)
        return answer
    if answer.slots:
        gate.hold_slots(answer)
    if earlier is None:
        return answer
    earlier.join(answer)
    earlier.delay = answer.delay  # it has waited for what was decided before
    return earlier


def settle(gate: Any, passed: Passed, status: int, sent: int, *, is_broken: bool = False) -> Flow[None]:
    """Settle a response in one trip, or in none if nothing changes. What was charged for one that broke off stays
    charged, unless it is charged by bytes. Its status is 0 if it had not begun."""
    try:
        settlements = passed.settlements(status, sent, is_broken=is_broken)
        if settlements:
            decisions = yield partial(gate.settle_each, settlements)
            passed.note_settled(settlements, decisions)
    except Exception:
        log.exception(UNSETTLED)


def give_back(gate: Any, passed: Passed) -> Flow[None]:
    """Undo what was charged in the late stage, and release all slots: the request was rejected after all."""
    late = [verdict for verdict in passed.verdicts if verdict.stage == "late"]
    held, passed.slots = passed.slots, []
    failure: BaseException | None = None
    try:
        if late:
            yield partial(gate.undo, *late)
            held = [verdict for verdict in held if verdict.stage != "late"]
    except GeneratorExit:
        raise
    except Exception:
        log.exception(UNSETTLED)
    except BaseException as error:
        failure = error
    yield from _release(gate, held)
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None


def release_slots(gate: Any, passed: Passed) -> Flow[None]:
    """Release the slots of a request, once. A failure is logged."""
    held, passed.slots = passed.slots, []
    if held:
        yield from _release(gate, held)


def release_part(gate: Any, passed: Passed, verdict: Verdict) -> Flow[None]:
    """Release the slots of one part of the handler before the response ends."""
    held = [one for one in passed.slots if one is verdict]
    passed.slots = [one for one in passed.slots if one is not verdict]
    yield from _release(gate, held)


def _release(gate: Any, verdicts: Sequence[Verdict]) -> Flow[None]:
    held = [verdict for verdict in verdicts if verdict.holding]
    if held:
        try:
            yield partial(gate.release_slots, *held)
        except Exception:
            log.exception(UNRELEASED)
