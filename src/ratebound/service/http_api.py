"""The HTTP API for programs: each call is a POST of JSON, alone or as an array of several.

A call that worked is answered with 200, also if the decision denies: the caller is not the one who is limited. What is
wrong with a call is said as problem+json, with the fields that are wrong.

Every call is answered without a pause where the storage allows it, and else by a coroutine; see `http1.Answer`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import msgspec

from ratebound.arguments import in_parts, refuse_shared_counts
from ratebound.clock import SECOND
from ratebound.decision import Decision, Plan
from ratebound.errors import InvalidCost, InvalidLimit, InvalidValue, StorageError
from ratebound.extras import extras_of
from ratebound.flow import run_at_once
from ratebound.http import Headers, parse_address
from ratebound.http.header_plan import Pairs
from ratebound.limit import Ask, Group, Limit, checked_cost
from ratebound.outcome import Row
from ratebound.policy import RequestView, Verdict
from ratebound.policy.match.reading import SAFE
from ratebound.service.connections import Bounds
from ratebound.service.engine import Engine, plan_of
from ratebound.service.http1 import Answer, Handle, HttpRequest, response
from ratebound.service.http_messages import (
    Answered,
    CancelCall,
    CheckCall,
    CommitCall,
    DecideCall,
    DecisionAnswer,
    DoneAnswer,
    FieldProblem,
    HitCall,
    LimitAnswer,
    OutcomeAnswer,
    PeekCall,
    ProblemAnswer,
    ReleaseCall,
    ReserveCall,
    ResetCall,
    SettleCall,
    UsageAnswer,
    UsageCall,
    UsageEntry,
    VerdictAnswer,
    field_problem,
)
from ratebound.service.leased_slots import LeasedSlots
from ratebound.service.reservations import (
    ExpiredToken,
    InvalidToken,
    Purpose,
    SignedDecisions,
    SignedTokens,
    TokenUse,
    UsedToken,
    costs_of,
)
from ratebound.slots import slots_of
from ratebound.uncancelled import uncancelled
from ratebound.usage import Usage, usage_ask, usages_of
from ratebound.web.passed import joined_decision
from ratebound.web.verdict_response import shadows_of, told_decision, verdict_response

JSON = ("content-type", "application/json")
PROBLEM = ("content-type", "application/problem+json")
RETRY = [("retry-after", "1")]  # it is unknown when the storage will be back
MAX_SHOWN = 4096  # limits whose answers are kept
MAX_LIMITS = 5000  # in one request: while it is decided, nobody else is answered
LIFETIME = 3600  # seconds, of a token for settling
DONE = DoneAnswer()
EITHER = "give either 'key' and 'limits', or 'checks'"
EITHER_IDENTITY = "give either 'key' and 'limits', or 'identity'"
NOT_JSON = "The body is not valid JSON."
NO_STORAGE = "The storage could not answer. Try again later."
ENCODE = msgspec.json.Encoder().encode
ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class ApiReply(NamedTuple):
    """The answer to one call: headers, and a message."""

    headers: Pairs
    message: Answered


ApiAnswer = ApiReply | Coroutine[Any, Any, ApiReply]


class RefusedCall(Exception):
    """A call that cannot be answered: a status, a sentence, and the fields that are wrong."""

    def __init__(self, status: int, detail: str, fields: Sequence[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.fields = fields


class PlannedSpend(NamedTuple):
    """A group to spend, and what to answer once it is decided."""

    group: Group
    reply: Callable[[Decision], ApiReply]


class HttpApi:
    """The calls of the HTTP API, by path: `routes`.

    `secrets` sign the tokens of reservations. All instances of the service need the same; see `SignedTokens`. `leased`
    are the slots that callers hold.
    """

    def __init__(self, engine: Engine, secrets: Sequence[bytes], bounds: Bounds) -> None:
        self._engine = engine
        self._batch = bounds.batch
        self._headers = Headers()
        self.leased = LeasedSlots()
        self._tokens = SignedTokens(secrets, self.leased)
        self._use = TokenUse(engine.decider, self._tokens.maker, self.leased)
        self._shown: dict[int, tuple[Limit, LimitAnswer]] = {}
        self.routes: dict[bytes, Handle] = {
            b"/v1/decide": self._route(DecideCall, self._decide),
            b"/v1/hit": self._route(HitCall, self._hit, self._hit_spend),
            b"/v1/peek": self._route(PeekCall, self._peek),
            b"/v1/reserve": self._route(ReserveCall, self._reserve, self._reserve_spend),
            b"/v1/commit": self._route(CommitCall, self._commit),
            b"/v1/cancel": self._route(CancelCall, self._cancel),
            b"/v1/settle": self._route(SettleCall, self._settle),
            b"/v1/release": self._route(ReleaseCall, self._release),
            b"/v1/usage": self._route(UsageCall, self._usage),
            b"/v1/reset": self._route(ResetCall, self._reset),
        }

    # How a call is read and answered

    def _route(
        self, kind: type[Any], answer: Callable[[Any], ApiAnswer], spend: Callable[[Any], PlannedSpend] | None = None
    ) -> Handle:
        """Return the function that answers requests of a path. With `spend`, an array of calls takes one trip."""
        decode = msgspec.json.Decoder(kind).decode

        def handle(request: HttpRequest) -> Answer:
            body = request.body
            try:
                _check_type(request)
                if body[:1] == b"[" or body[:64].lstrip()[:1] == b"[":
                    calls = self._calls(body, decode)
                    found = self._answer_each(calls, answer) if spend is None else self._spend_each(calls, spend)
                    return _written_array(found) if isinstance(found, list) else _later_array(found)
                reply = answer(_decoded(decode, body))
            except (RefusedCall, StorageError) as error:
                return _written(_problem(error))
            return _written(reply) if isinstance(reply, ApiReply) else _later(reply)

        return handle

    def _calls(self, body: bytes, decode: Callable[[Any], Any]) -> list[Any]:
        """Return the calls of an array; for one that cannot be read, what is wrong with it."""
        entries: list[Any] = _decoded(ARRAY.decode, body)
        if len(entries) > self._batch:
            raise RefusedCall(422, f"An array of at most {self._batch} calls is expected, not of {len(entries)}.")
        calls: list[Any] = []
        for entry in entries:
            try:
                calls.append(_decoded(decode, entry))
            except RefusedCall as error:
                calls.append(error)
        if sum(map(_number_of_limits, calls)) > MAX_LIMITS:
            raise RefusedCall(422, f"An array of calls with at most {MAX_LIMITS} limits is expected.")
        return calls

    def _answer_each(
        self, calls: list[Any], answer: Callable[[Any], ApiAnswer]
    ) -> list[ApiReply] | Coroutine[Any, Any, list[ApiReply]]:
        """Answer calls one after the other, or side by side if they have to be awaited."""
        replies: list[Any] = []
        for call in calls:
            try:
                replies.append(_problem(call) if isinstance(call, RefusedCall) else answer(call))
            except (RefusedCall, StorageError) as error:
                replies.append(_problem(error))
        if all(isinstance(reply, ApiReply) for reply in replies):
            return replies
        return _all_of(replies)

    def _spend_each(
        self, calls: list[Any], spend: Callable[[Any], PlannedSpend]
    ) -> list[ApiReply] | Coroutine[Any, Any, list[ApiReply]]:
        """Spend what calls ask for, each by itself, in one trip to the storage."""
        spends: list[PlannedSpend | ApiReply] = []
        for call in calls:
            try:
                spends.append(_problem(call) if isinstance(call, RefusedCall) else spend(call))
            except RefusedCall as error:
                spends.append(_problem(error))
        return self._engine.now(self._spent_each(spends))

    async def _spent_each(self, spends: list[PlannedSpend | ApiReply]) -> list[ApiReply]:
        decided: list[Decision | StorageError] = []
        for part in in_parts([one.group for one in spends if isinstance(one, PlannedSpend)]):
            try:
                decided += await self._engine.spend_each(part)
            except StorageError as error:
                answers: Sequence[Any] = [error] * len(part) if error.answers is None else error.answers
                for group, found in zip(part, answers, strict=True):
                    decided.append(found if isinstance(found, StorageError) else Decision(group, found))
        rest = iter(decided)
        replies: list[ApiReply] = []
        for one in spends:
            if isinstance(one, ApiReply):
                replies.append(one)
                continue
            decision = next(rest)
            replies.append(_problem(decision) if isinstance(decision, StorageError) else one.reply(decision))
        return replies

    # Callers' own limits

    def _hit(self, call: HitCall) -> ApiAnswer:
        if call.checks is None and call.key is not None and call.limits is not None and call.values is None:
            plan = _plan(call.limits, "limits")
            decision = self._engine.hit_now(call.key, plan, _checked_cost(call.cost))
            if decision is not None:
                return self._decided(decision, call.settle, may_hold=False)
        return self._spent(self._hit_spend(call))

    def _hit_spend(self, call: HitCall) -> PlannedSpend:
        return PlannedSpend(self._kept(_group_of(call)), lambda decision: self._decided(decision, call.settle))

    def _reserve(self, call: ReserveCall) -> ApiAnswer:
        return self._spent(self._reserve_spend(call))

    def _reserve_spend(self, call: ReserveCall) -> PlannedSpend:
        return PlannedSpend(self._kept(_group_of(call)), lambda decision: self._reserved(decision, call.lifetime))

    def _kept(self, group: Group) -> Group:
        """Return a group of a caller's own limits. Raises RefusedCall for a limit that the storage does not keep."""
        try:
            self._engine.refuse_unkept(group)
        except InvalidLimit as error:
            raise _wrong([FieldProblem("limits", str(error))]) from None
        return group

    def _spent(self, spend: PlannedSpend) -> ApiAnswer:
        return self._engine.now(self._spend(spend))

    async def _spend(self, spend: PlannedSpend) -> ApiReply:
        return spend.reply(await self._engine.spend(spend.group))

    def _decided(self, decision: Decision, settles: bool = False, may_hold: bool = True) -> ApiReply:
        """Return a decision, with a token to settle it if that is asked for, and one to release its slots."""
        settle: Any = msgspec.UNSET
        release: Any = msgspec.UNSET
        if decision.allowed and not decision.final:
            if settles:
                settle = self._tokens.make("settle", [decision], LIFETIME)
            if may_hold and slots_of(decision.asks, 1):
                release = self._tokens.make_release([decision])
        return ApiReply(self._headers.pairs(decision), self._shown_decision(decision, settle, release))

    def _reserved(self, decision: Decision, lifetime: int) -> ApiReply:
        reservation: Any = msgspec.UNSET
        if decision.allowed:
            reservation = self._tokens.make("reservation", [decision], lifetime)
        shown = self._shown_decision(decision, reservation=reservation)
        return ApiReply(self._headers.pairs(decision), shown)

    def _peek(self, call: PeekCall) -> ApiAnswer:
        return self._engine.now(self._peeked(self._kept(_group_of(call))))

    async def _peeked(self, group: Group) -> ApiReply:
        return self._decided(await self._engine.decider.peek(group))

    # Tokens

    def _commit(self, call: CommitCall) -> ApiAnswer:
        content = self._read("reservation", "reservation", call.reservation)
        costs = _final_costs(content, call.cost)
        return self._to_its_end(self._committed(content, costs))

    async def _committed(self, content: SignedDecisions, cost: int | list[int]) -> ApiReply:
        reply = await self._settled(content, cost, False, "reservation")
        await self._use.release(content)
        return reply

    def _cancel(self, call: CancelCall) -> ApiAnswer:
        content = self._read("reservation", "reservation", call.reservation)
        return self._to_its_end(self._cancelled(content))

    async def _cancelled(self, content: SignedDecisions) -> ApiReply:
        try:
            await self._use.undo(content)
        except (UsedToken, ExpiredToken) as error:
            _refuse_token(error, "reservation")
        return ApiReply([], DONE)

    def _settle(self, call: SettleCall) -> ApiAnswer:
        content = self._read("settle", "settle", call.settle)
        costs = _final_costs(content, call.cost)
        return self._to_its_end(self._settled(content, costs, call.strike, "settle"))

    async def _settled(self, content: SignedDecisions, cost: int | list[int], strike: bool, field: str) -> ApiReply:
        try:
            settled = await self._use.settle(content, cost, strike)
        except (UsedToken, ExpiredToken) as error:
            _refuse_token(error, field)
        decision: Decision | None = settled[0]
        for later in settled[1:]:
            decision = joined_decision(decision, later)
        assert decision is not None
        if len(settled) > 1:
            decision.allowed, decision.final = True, settled[0].final
        return self._decided(decision)

    def _release(self, call: ReleaseCall) -> ApiAnswer:
        content = self._read("release", "release", call.release)
        return self._to_its_end(self._released(content))

    async def _released(self, content: SignedDecisions) -> ApiReply:
        await self._use.release(content)
        return ApiReply([], DONE)

    def _read(self, purpose: Purpose, field: str, token: str) -> SignedDecisions:
        try:
            return self._tokens.read(purpose, token)
        except InvalidToken as error:
            raise _wrong([FieldProblem(field, str(error))]) from None

    def _to_its_end(self, coroutine: Coroutine[Any, Any, ApiReply]) -> ApiAnswer:
        """Run a use of a token at once, or to its end even if the caller goes away: a token is used only once."""
        return run_at_once(coroutine) if self._engine.never_pauses else uncancelled(coroutine)

    # Usage

    def _usage(self, call: UsageCall) -> ApiAnswer:
        return self._engine.now(self._used(call))

    async def _used(self, call: UsageCall) -> ApiReply:
        if call.identity is not None:
            _refuse_beside_identity(call)
            try:
                found = await self._engine.gate.usage_of(call.identity, rule=call.rule, tier=call.tier)
            except ValueError as error:
                raise _wrong_client(error) from None
        else:
            if call.tier is not None:
                raise _wrong([FieldProblem("tier", "a tier goes with 'identity'")])
            group = self._kept((_usage_ask(call),))
            found = usages_of(group, (await self._engine.decider.evaluate((group,), "peek"))[0])
        return ApiReply([], UsageAnswer([self._shown_usage(usage) for usage in found]))

    def _reset(self, call: ResetCall) -> ApiAnswer:
        return self._engine.now(self._forgotten(call))

    async def _forgotten(self, call: ResetCall) -> ApiReply:
        if call.identity is not None:
            _refuse_beside_identity(call)
            try:
                await self._engine.gate.reset(call.identity, rule=call.rule)
            except ValueError as error:
                raise _wrong_client(error) from None
        else:
            await self._engine.decider.reset(self._kept((_usage_ask(call),)))
        return ApiReply([], DONE)

    # The policy

    def _decide(self, call: DecideCall) -> ApiAnswer:
        view = view_of(call)
        verdict = self._engine.decide_now(view)
        return self._decision_of(view, call) if verdict is None else self._judged(verdict, view, call.settle)

    async def _decision_of(self, view: RequestView, call: DecideCall) -> ApiReply:
        return self._judged(await self._engine.decide(view), view, call.settle)

    def _judged(self, verdict: Verdict, view: RequestView, settles: bool) -> ApiReply:
        status, pairs, body = verdict_response(verdict, view)
        settle: Any = msgspec.UNSET
        release: Any = msgspec.UNSET
        text: Any = msgspec.UNSET
        decision = told_decision(verdict)
        if verdict.allowed:
            made = [one for one in verdict.decisions if one.allowed] if settles else []
            if made:
                shadows = [shadow.decision for shadow in shadows_of(verdict)]
                enforced = [not any(one is shadow for shadow in shadows) for one in made]
                if any(enforced):
                    settle = self._tokens.make("settle", made, LIFETIME, enforced)
            holding = verdict.holding
            if holding:
                release = self._tokens.make_release(holding)
        else:
            text = body.decode("utf-8", "replace")
        shown = None if decision is None else self._shown_decision(decision)
        headers: dict[str, str] = {}
        for name, value in pairs:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        message = VerdictAnswer(verdict.allowed, status, verdict.kind, headers, shown, text, settle, release)
        return ApiReply([pair for pair in pairs if pair[0] != "Content-Type"], message)

    # Messages

    def _shown_decision(
        self,
        decision: Decision,
        settle: Any = msgspec.UNSET,
        release: Any = msgspec.UNSET,
        reservation: Any = msgspec.UNSET,
    ) -> DecisionAnswer:
        rows, asks = decision.rows, decision.asks
        if len(rows) == 1:  # the usual one: most of what a Decision looks for is known
            (row,) = rows
            limit = asks[0][1][0]
            remaining, reset_after = row[1], row[3] / SECOND
            outcomes = [self._shown_outcome(0, limit, row)]
            overage = decision.overage if limit.metered else 0
        else:
            limit, remaining, reset_after = decision.limit, decision.remaining, decision.reset_after
            limits = [(number, limit) for number, ask in enumerate(asks) for limit in ask[1]]
            outcomes = [self._shown_outcome(*one, row) for one, row in zip(limits, rows, strict=True)]
            overage = decision.overage
        return DecisionAnswer(
            decision.allowed,
            remaining,
            self._shown_limit(limit),
            decision.retry_after,
            reset_after,
            decision.delay,
            decision.blocked,
            overage,
            decision.degraded,
            decision.unavailable,
            outcomes,
            settle,
            release,
            reservation,
        )

    def _shown_outcome(self, number: int, limit: Limit, row: Row) -> OutcomeAnswer:
        wait = row[2]
        return OutcomeAnswer(
            number,
            self._shown_limit(limit),
            row[0],
            row[1],
            None if wait is None else wait / SECOND,
            row[3] / SECOND,
            row[4] / SECOND,
        )

    def _shown_limit(self, limit: Limit) -> LimitAnswer:
        """Return a limit as callers see it. It is kept: limits are the same objects from call to call."""
        found = self._shown.get(id(limit))
        if found is not None and found[0] is limit:
            return found[1]
        if len(self._shown) >= MAX_SHOWN:
            self._shown.clear()
        period = None if limit.calendar is not None else limit.period_us / SECOND
        shown = LimitAnswer(limit.text, limit.name, limit.count, period, limit.burst)
        self._shown[id(limit)] = limit, shown
        return shown

    def _shown_usage(self, usage: Usage) -> UsageEntry:
        return UsageEntry(
            usage.name,
            usage.rule,
            self._shown_limit(usage.limit),
            usage.quota,
            usage.used,
            usage.remaining,
            usage.granted,
            usage.resets_at,
            usage.previous,
            usage.blocked,
            usage.degraded,
        )


# What is wrong with a call


def _check_type(request: HttpRequest) -> None:
    given = request.header(b"content-type")
    if given is not None and given.partition(b";")[0].strip().lower() != b"application/json":
        shown = given[:64].decode("ascii", "replace")
        raise RefusedCall(415, f"The content type must be application/json, not {shown}. curl sends it with --json.")


def _decoded(decode: Callable[[Any], Any], body: Any) -> Any:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise _wrong([field_problem(error)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RefusedCall(400, NOT_JSON) from None
    except RecursionError:
        raise RefusedCall(400, "The body is nested too deeply.") from None


def _wrong(fields: Sequence[FieldProblem]) -> RefusedCall:
    """Return the refusal of a call with wrong fields."""
    first = fields[0]
    return RefusedCall(422, f"{first.field}: {first.detail}" if first.field else first.detail, fields)


def _wrong_client(error: ValueError) -> RefusedCall:
    text = str(error)
    field = next((name for name in ("rule", "tier") if text.startswith(f"unknown {name} ")), "identity")
    return _wrong([FieldProblem(field, text)])


def _refuse_token(error: UsedToken | ExpiredToken, field: str) -> NoReturn:
    status, detail = 409, "this token was used before: it can be used once"
    if isinstance(error, ExpiredToken):
        status, detail = 410, "this token has expired"
    raise RefusedCall(status, f"{field}: {detail}", [FieldProblem(field, detail)])


def _refuse_beside_identity(call: ResetCall) -> None:
    beside = [name for name in ("key", "limits") if getattr(call, name) is not None]
    if beside:
        raise _wrong([FieldProblem(name, EITHER_IDENTITY) for name in beside])


def _problem(error: RefusedCall | StorageError) -> ApiReply:
    """Return the reply to a call that cannot be answered."""
    headers: Pairs = []
    fields: Any = msgspec.UNSET
    if isinstance(error, StorageError):
        status, detail, headers = 503, NO_STORAGE, RETRY
    else:
        status, detail = error.status, str(error)
        fields = list(error.fields) or msgspec.UNSET
    return ApiReply(headers, ProblemAnswer(HTTPStatus(status).phrase, status, detail, errors=fields))


# Answers


def _written(reply: ApiReply) -> bytes:
    headers, message = reply
    if isinstance(message, ProblemAnswer):
        return response(message.status, [PROBLEM, *headers], ENCODE(message))
    return response(200, [JSON, *headers], ENCODE(message))


async def _later(reply: Coroutine[Any, Any, ApiReply]) -> bytes:
    return _written(await _answered(reply))


async def _answered(reply: Coroutine[Any, Any, ApiReply]) -> ApiReply:
    try:
        return await reply
    except (RefusedCall, StorageError) as error:
        return _problem(error)


def _written_array(replies: Sequence[ApiReply]) -> bytes:
    return response(200, [JSON], ENCODE([reply.message for reply in replies]))


async def _later_array(replies: Coroutine[Any, Any, list[ApiReply]]) -> bytes:
    return _written_array(await replies)


async def _all_of(replies: list[Any]) -> list[ApiReply]:
    """Return all replies in order, those to await side by side."""
    waiting = [reply for reply in replies if not isinstance(reply, ApiReply)]
    try:
        found = iter(await asyncio.gather(*map(_answered, waiting)))
    finally:
        for reply in waiting:
            reply.close()  # one that was cancelled before it began
    return [reply if isinstance(reply, ApiReply) else next(found) for reply in replies]


# What a call asks for


def _plan(limits: str, field: str) -> Plan:
    try:
        return plan_of(limits)
    except InvalidLimit as error:
        raise _wrong([FieldProblem(field, str(error))]) from None


def _checked_cost(cost: int, field: str = "cost", *, least: int = 1) -> int:
    try:
        return checked_cost(cost, least=least)
    except InvalidCost as error:
        raise _wrong([FieldProblem(field, str(error))]) from None


def _final_costs(content: SignedDecisions, cost: int | list[int]) -> int | list[int]:
    """Return the costs to settle with. Raises RefusedCall before the token is used."""
    if isinstance(cost, int):
        return _checked_cost(cost, least=0)
    for number, each in enumerate(cost):
        _checked_cost(each, f"cost[{number}]", least=0)
    try:
        costs_of(content, cost)
    except ValueError as error:
        raise _wrong([FieldProblem("cost", str(error))]) from None
    return cost


def _number_of_limits(call: Any) -> int:
    """Return how many limits a call has, by its texts. A call that is refused or has none of its own counts as one."""
    checks = getattr(call, "checks", None)
    if checks is not None:
        return sum([check.limits.count(";") + 1 for check in checks])
    return (getattr(call, "limits", None) or "").count(";") + 1


def _group_of(call: PeekCall) -> Group:
    """Return what a call asks the storage for. Raises RefusedCall with all fields that are wrong."""
    problems: list[FieldProblem] = []
    if call.checks is None:
        for name in ("key", "limits"):
            if getattr(call, name) is None:
                problems.append(FieldProblem(name, f"this field is missing: {EITHER}"))
        if call.key is None or call.limits is None:
            raise _wrong(problems)
        checks, places = [CheckCall(call.key, call.limits, call.cost, call.values)], [""]
    else:
        for name, other in (("key", None), ("limits", None), ("values", None), ("cost", 1)):
            if getattr(call, name) != other:
                problems.append(FieldProblem(name, EITHER if other is None else "each of 'checks' has its own cost"))
        checks, places = call.checks, [f"checks[{number}]." for number in range(len(call.checks))]
        if _number_of_limits(call) > MAX_LIMITS:
            raise _wrong([FieldProblem("checks", f"expected at most {MAX_LIMITS} limits in all checks")])
    group = [ask for check, place in zip(checks, places, strict=True) for ask in _asks(check, place, problems)]
    if not problems and len(group) > 1:
        try:
            refuse_shared_counts(group)
        except InvalidLimit as error:
            problems.append(FieldProblem("checks", str(error)))
    if problems:
        raise _wrong(problems)
    return group


FIELDS: Mapping[type[Exception], str] = {
    InvalidLimit: "limits",
    InvalidCost: "cost",
    InvalidValue: "values",
}


def _asks(check: CheckCall, place: str, problems: list[FieldProblem]) -> list[Ask]:
    """Return the ask of one check; nothing, with what is wrong added to `problems`, if it cannot be asked."""
    try:
        limits, cost = plan_of(check.limits).limits, checked_cost(check.cost)
        return [(check.key, limits, cost, None, extras_of(check.key, limits, check.values))]
    except (InvalidLimit, InvalidCost, InvalidValue) as error:
        problems.append(FieldProblem(place + FIELDS[type(error)], str(error)))
        return []


def _usage_ask(call: ResetCall) -> Ask:
    """Return the ask for a caller's own limits."""
    missing = [name for name in ("key", "limits") if getattr(call, name) is None]
    if call.key is None or call.limits is None:
        raise _wrong([FieldProblem(name, f"this field is missing: {EITHER_IDENTITY}") for name in missing])
    if call.rule is not None:
        raise _wrong([FieldProblem("rule", "a rule goes with 'identity'")])
    return usage_ask(call.key, _plan(call.limits, "limits").limits)


def view_of(call: DecideCall) -> RequestView:
    """Return the request that a call describes, as the policy sees it. Raises RefusedCall for a wrong address."""
    if call.address is not None and parse_address(call.address) is None:
        detail = "this is not an address: expected for example 203.0.113.7 or 2001:db8::7"
        raise _wrong([FieldProblem("address", detail)])
    headers: list[tuple[str, str]] = []
    host = call.host
    for name, value in call.headers.items():
        for line in (value,) if isinstance(value, str) else value:
            headers.append((name.lower(), line))
            if host is None and name.lower() == "host":
                host = line
    return RequestView(
        call.method.upper(),
        call.path if call.path.isascii() and call.path.isprintable() else quote(call.path, safe=SAFE + "%"),
        query=call.query,
        host=host or "",
        headers=headers,
        peer=call.address,
        scheme=call.scheme,
        user=call.user,
        route=call.route,
        body=None if call.body is None else call.body.encode(),
    )
