"""The calls of operators, carried out on a gate in this process. Written once as flows, for threads and for tasks.

Fields were checked by the table; what only the gate can know is checked here, and all that is wrong is said at once.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

from ratebound import __version__, compiled
from ratebound.admin.audit_log import log_call
from ratebound.admin.calls import CALLS, Operator, is_audited
from ratebound.admin.ledger_calls import CALLED, NO_LEDGER, LedgerCalls, many_clients, names_shown
from ratebound.admin.messages import CallError, WrongField
from ratebound.admin.policy_source import GatePolicySource, PolicySource
from ratebound.admin.rules_in_force import descriptor_document, rule_document
from ratebound.admin.storage_name import storage_name
from ratebound.errors import InvalidCost, InvalidLimit, StorageError
from ratebound.flow import Flow, Step
from ratebound.ledger import Ledger
from ratebound.policy.identity.identify import IdentityKinds
from ratebound.policy.identity.named_client import WITH_DETAIL
from ratebound.policy.model.rule import read_limits
from ratebound.policy.problem import PolicyError, nearest
from ratebound.policy.runtime.client_name import canonical_client, client_under
from ratebound.policy.runtime.operator_documents import (
    AUDIT,
    MAX_TARGET,
    DocumentContended,
    as_line,
    checked_length,
    reading,
)
from ratebound.policy.runtime.operator_measures import DOCUMENTS
from ratebound.policy.runtime.operator_overrides import ClientOverride
from ratebound.policy.runtime.operator_switches import RuleSwitch
from ratebound.storage import keeps_documents
from ratebound.usage import Usage

RETRY = {"Retry-After": "1"}  # it is unknown when the storage will be back
FIELDS = {call.name: [field.name for field in call.fields] for call in CALLS}
FRESH = 0.5  # seconds for which documents are not read again: less than the second between two live events
NO_DOCUMENTS = "The storage keeps no shared documents, so operators cannot change or list this."
UNSEEN = "This instance has not seen that client, or has forgotten it: block it by its name."


class Figures(Protocol):
    """The figures of all processes. What the methods return may have to be awaited."""

    def view(self) -> Any:
        """Return the figures as they are now, for JSON."""

    def history(self) -> Any:
        """Return the figures of the last hour, for JSON."""

    def names(self, digests: Sequence[str]) -> Any:
        """Return the keys of clients by their digests, those that are known."""


class Operations:
    """The calls of operators on a gate: a Gate, an AsyncGate, or one of the web's, which knows rules of endpoints.

    `policy` says where the policy comes from; without it the gate is asked. `ledger` answers the calls about usage.
    """

    def __init__(
        self, gate: Any, figures: Figures, policy: PolicySource | None = None, ledger: Ledger | None = None
    ) -> None:
        self._gate = gate
        self._core = getattr(gate, "gate", gate)
        self._figures = figures
        self._policy = GatePolicySource(self._core) if policy is None else policy
        self._ledger = None if ledger is None else LedgerCalls(ledger)
        self.has_ledger = ledger is not None
        self.is_async = inspect.iscoroutinefunction(type(self._core).decide)
        self.is_blocking = not self.is_async
        self._revision: tuple[float, str] | None = None
        self._documents = b""  # of operators, as they were read last
        self._readers_check = threading.Lock()
        self._methods: dict[str, Callable[[dict[str, Any], Operator], Flow[Any]]] = {
            "figures": self._read_figures,
            "history": self._read_history,
            "rules": self._rules,
            "shadow": self._shadow,
            "promote": self._promote,
            "blocks": self._blocks,
            "block": self._block,
            "unblock": self._unblock,
            "overrides": self._overrides,
            "override": self._override,
            "remove_override": self._remove_override,
            "switches": self._switches,
            "set_switch": self._set_switch,
            "remove_switch": self._remove_switch,
            "usage": self._usage,
            "grant": self._grant,
            "reset": self._reset,
            "holders": self._holders,
            "top": self._top,
            "changes": self._changes,
            "policy": self._policy_in_force,
            "check_policy": self._check_policy,
            "reload_policy": self._reload_policy,
            "health": self._health,
            **{name: partial(self._ask_ledger, name) for name in CALLED},
        }

    def call(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
        """Carry out a call of the table, and return its answer for JSON. What may have changed something is logged.
        Raises CallError."""
        status = 500
        try:
            answer = yield from self._carried_out(name, arguments, operator)
            status = 200
        except CallError as error:
            status = error.status
            raise
        finally:
            log_call(name, arguments, operator, status)
        if is_audited(name, arguments):
            self._revision = None  # the page that made the change sees it at once
        return answer

    def _carried_out(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
        try:
            return (yield from self._methods[name](dict(arguments), operator))
        except StorageError as error:
            raise _storage_error(error) from None
        except PolicyError as error:
            wrong = [WrongField(problem.where, problem.message) for problem in error.problems]
            raise CallError(422, str(error), wrong) from None
        except ValueError as error:
            if not arguments:
                raise  # no field is wrong: it is ours
            raise CallError(422, str(error), [(_field_of(name, error), str(error))]) from None

    # Figures

    def _read_figures(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        view = yield self._figures.view
        return {**view, "revision": (yield from self._documents_revision())}

    def _read_history(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        return (yield self._figures.history)

    def _shadow(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        view = yield self._figures.view
        return {"shadow": view["shadow_report"]}

    def _top(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        view = yield self._figures.view
        top = [dict(one) for one in view["top"]]
        if arguments.get("names"):
            yield from self._record("show names", "", many_clients(len(top)), operator)
            names = yield partial(self._figures.names, [one["client"] for one in top])
            for one in top:
                if one["client"] in names:
                    one["name"] = client_under(names[one["client"]])
        return {"top": top}

    def _documents_revision(self) -> Flow[str]:
        """Return a text that changes with every change by an operator, with the policy in force, and with what is wrong
        with the policy as it is now. One trip for all who look at that moment."""
        storage, now = self._core.storage, time.monotonic()
        if self._revision is not None and now - self._revision[0] < FRESH:
            return self._revision[1]
        if keeps_documents(storage):
            try:
                names = (*DOCUMENTS, AUDIT)
                found = yield from reading(storage, names)
                self._documents = b"\0".join(found.get(name, b"") for name in names)  # a damaged one is missing
            except StorageError:  # the figures tell
                pass
        policy: str = yield self._policy.revision
        revision = blake2b(self._documents + policy.encode("utf-8", "replace"), digest_size=8).hexdigest()
        self._revision = now, revision
        return revision

    # Documents of operators

    def _blocks(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        return {"blocks": self._entries((yield self._gate.blocks), [])}

    def _block(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        client = arguments.get("client")
        if client is None:
            client = yield from self._client_of_digest(arguments["digest"])
        self._check(arguments, client=client)
        done = yield partial(
            self._gate.block, client, arguments.get("for"), arguments.get("reason", ""), by=operator.name
        )
        return self._entry(done)

    def _unblock(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        client = arguments["client"]
        done = yield partial(self._gate.unblock, client, by=operator.name)
        return {"removed": done}

    def _overrides(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        return {"overrides": self._entries((yield self._gate.overrides), self._known_rules())}

    def _override(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        client, rules = arguments["client"], tuple(arguments.get("rules", ()))
        self._check(arguments, client=client, rules=rules)
        done = yield partial(
            self._gate.override,
            client,
            limits=arguments.get("limits"),
            tier=arguments.get("tier"),
            rules=rules,
            for_=arguments.get("for"),
            reason=arguments.get("reason", ""),
            by=operator.name,
        )
        return self._entry(done)

    def _remove_override(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        client = arguments["client"]
        rules = tuple(arguments.get("rule", ()))
        done = yield partial(self._gate.remove_override, client, rules=rules, by=operator.name)
        return {"removed": done}

    def _switches(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        return {"switches": self._entries((yield self._gate.switches), self._known_rules())}

    def _set_switch(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        rule = arguments.get("rule")
        self._check(arguments, rules=() if rule is None else (rule,), label="rule")
        done = yield partial(
            self._gate.set_switch,
            arguments["state"],
            rule=rule,
            for_=arguments.get("for"),
            reason=arguments.get("reason", ""),
            by=operator.name,
        )
        return self._entry(done)

    def _remove_switch(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        rule = arguments.get("rule")
        done = yield partial(self._gate.remove_switch, rule, by=operator.name)
        return {"removed": done}

    def _promote(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        name = arguments["rule"]
        self._check(arguments, rules=(name,), label="rule")
        done = yield partial(
            self._gate.promote,
            name,
            for_=arguments.get("for"),
            reason=arguments.get("reason", ""),
            by=operator.name,
        )
        return self._entry(done)

    def _changes(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        self._check_documents()
        return {"changes": [_document(one) for one in (yield self._gate.changes)]}

    # Clients

    def _usage(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        found = yield partial(
            self._gate.usage_of, arguments["client"], rule=arguments.get("rule"), tier=arguments.get("tier")
        )
        return {"usage": [_usage_document(one) for one in found]}

    def _grant(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        client, units, rule = arguments["client"], arguments["units"], arguments.get("rule")
        self._client_limits(client, rule).granting(units)  # what is wrong is said before it is recorded
        yield from self._record("grant", _joined(client), f"{units} units{_of(rule)}", operator)
        found = yield partial(self._gate.grant, client, units, rule=rule)
        return {"usage": [_usage_document(one) for one in found]}

    def _reset(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        client, rule = arguments["client"], arguments.get("rule")
        self._client_limits(client, rule)
        yield from self._record("reset", _joined(client), _of(rule).strip(), operator)
        yield partial(self._gate.reset, client, rule=rule)
        return {"done": True}

    def _holders(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        try:
            found = yield partial(self._gate.holders, arguments["client"], rule=arguments.get("rule"))
        except TypeError as error:
            raise CallError(501, str(error)) from None
        return {
            "holders": [
                {"limit": one.limit.name, "id": str(one.id), "expires_at": _instant(one.expires_at)} for one in found
            ]
        }

    def _client_of_digest(self, digest: str) -> Flow[str]:
        """Return a client of the figures as blocks name it. Raises CallError if that cannot be."""
        names = yield partial(self._figures.names, [digest])
        key = names.get(digest)
        if key is None:
            raise CallError(404, UNSEEN, [("digest", UNSEEN)])
        if "+" in key.partition(":")[0]:
            text = "this client is counted by several identities at once: block one of them by its name"
            raise CallError(422, f"digest: {text}", [("digest", text)])
        try:
            return canonical_client(client_under(key), self._kinds)
        except ValueError as error:
            raise CallError(422, f"digest: {error}", [("digest", str(error))]) from None

    # The usage ledger

    def _ask_ledger(self, name: str, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        if self._ledger is None:
            raise CallError(404, NO_LEDGER)
        found = yield self._aside(self._ledger.answer, name, arguments)
        if arguments.get("names"):  # before they are shown
            yield from self._record(*names_shown(found), operator)
        return found

    # The policy

    def _rules(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        core = self._core
        rules = self._known_rules()
        entries: Sequence[RuleSwitch] = ()
        if keeps_documents(core.storage):
            try:
                entries = yield self._gate.switches
            except StorageError:  # then what was read last holds
                measures = core._known_measures()
                if measures is not None and measures.switches is not None:
                    entries = measures.switches.entries
        switches = {one["rule"] or "": one for one in self._entries(entries, rules)}
        policy = core.policy
        for_all = core.switch or (switches[""]["state"] if "" in switches else policy.switch)
        own = {one.name for one in policy.rules}

        def with_state(one: dict[str, Any]) -> dict[str, Any]:
            switch = switches.get(one["name"])
            state = "on" if one["mode"] == "enforce" else "shadow"
            if switch is not None and not switch["stale"]:
                state = switch["state"]
            if for_all == "off" or (for_all == "shadow" and state != "off"):
                state = for_all
            return {**one, "state": state, "switch": switch}

        return {
            "state": for_all,
            "switch": switches.get(""),
            "rules": [with_state(rule_document(one, is_endpoints=one.rule.name not in own)) for one in rules],
            "descriptors": [with_state(descriptor_document(one)) for one in policy.descriptors],
        }

    def _policy_in_force(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        origin = yield self._aside(self._policy.describe)
        return {**origin._asdict(), "storage": storage_name(self._core.storage)}

    def _check_policy(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        is_reader = not operator.may("write")
        if is_reader and not self._readers_check.acquire(blocking=False):
            # A policy is compiled in a process that decides, and who may only look must not slow decisions down
            raise CallError(429, "Another dry run of an operator with the role read is under way.", headers=RETRY)
        try:
            found = yield self._aside(self._policy.check, arguments.get("text"), arguments.get("format"))
        except PolicyError as error:
            return _wrong_policy(error)
        finally:
            if is_reader:
                self._readers_check.release()
        return {"valid": True, "problems": [], "changes": list(found)}

    def _reload_policy(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        try:
            found = yield self._aside(self._policy.reload)
        except PolicyError as error:
            return _wrong_policy(error)
        self._core.current()  # the next request decides by it
        yield from self._record("reload", "policy", f"{len(found)} changes", operator)
        return {"valid": True, "problems": [], "changes": list(found)}

    def _health(self, arguments: dict[str, Any], operator: Operator) -> Flow[Any]:
        view = yield self._figures.view
        problems = [view["problem"]] if view["problem"] else []
        problems += [
            f"The storage{' node ' + node['node'] if node['node'] else ''} is not asked: its breaker is open."
            for node in view["storage"]["nodes"]
            if node["is_open"]
        ]
        origin = yield self._aside(self._policy.describe)
        if origin.error:
            problems.append(f"The policy cannot be used as it is now; the one before it is in force: {origin.error}")
        return {"healthy": not problems, "problems": problems, "version": __version__, "compiled": compiled}

    # Parts

    @property
    def _kinds(self) -> IdentityKinds:
        kinds: IdentityKinds = self._core.policy.kinds
        return kinds

    def _known_rules(self) -> list[Any]:
        known = getattr(self._gate, "known_rules", None)
        return list(self._core.current().rules) if known is None else known()

    def _client_limits(self, client: str | Sequence[str], rule: str | None) -> Any:
        """Return the limits that count a client. Raises ValueError if there are none."""
        return self._core._client_limits(client, None, rule, self._known_rules(), self._core._known_measures())

    def _entries(self, entries: Sequence[Any], known: Sequence[Any]) -> list[dict[str, Any]]:
        """Return entries of operators' documents for JSON, with what is wrong with each under the policy in force.

        That is found once for entries that differ only in the name of the client: there may be 10 000 of them.
        """
        found, problems = [], dict[Any, str]()
        for entry in entries:
            alike = _without_name(entry)
            problem = problems.get(alike)
            if problem is None:
                problem = problems[alike] = self._core.problem_of(entry, known=known)
            document = {**_document(entry), "problem": problem}
            if isinstance(entry, RuleSwitch):
                document |= {"rule": entry.rule or None, "stale": bool(problem)}
            found.append(document)
        return found

    def _entry(self, entry: Any) -> dict[str, Any]:
        return self._entries([entry], self._known_rules())[0]

    def _check_documents(self) -> None:
        if not keeps_documents(self._core.storage):
            raise CallError(501, NO_DOCUMENTS)

    def _check(
        self,
        arguments: Mapping[str, Any],
        *,
        client: str | None = None,
        rules: Sequence[str] = (),
        label: str = "rules",
    ) -> None:
        """Raise CallError with everything that is wrong, as far as it can be known before the gate is called."""
        wrong: list[WrongField] = []

        def check(field: str, function: Callable[[Any], Any], value: Any) -> None:
            try:
                if value is not None:
                    function(value)
            except ValueError as error:
                wrong.append(WrongField(field, str(error)))

        check("client" if "client" in arguments else "digest", partial(canonical_client, kinds=self._kinds), client)
        check("for", partial(checked_length, what="this"), arguments.get("for"))
        check("limits", read_limits, arguments.get("limits"))
        tier, tiers = arguments.get("tier"), self._core.policy.tier_names
        if tier is not None and tier not in tiers:
            wrong.append(WrongField("tier", f"unknown tier {tier!r}: {nearest(tier, tiers)}"))
        known = {one.rule.name for one in self._known_rules()} if rules else set()
        if label == "rule":  # switches are for descriptors, too
            known |= {one.name for one in self._core.policy.descriptors}
        for rule in rules:
            if rule not in known:
                wrong.append(WrongField(label, f"unknown rule {rule!r}: {nearest(rule, known)}"))
        if wrong:
            raise CallError(422, "; ".join(f"{one.field}: {one.detail}" for one in wrong), wrong)

    def _aside(self, function: Callable[..., Any], *arguments: Any) -> Step:
        """Return a step that reads and compiles a policy, which must not keep an event loop from decisions."""
        if self.is_async and not inspect.iscoroutinefunction(function):
            return partial(asyncio.to_thread, function, *arguments)
        return partial(function, *arguments)

    def _record(self, action: str, target: str, detail: str, operator: Operator) -> Flow[None]:
        """Write to the log of changes. It is written before an action, so that none goes unrecorded."""
        if keeps_documents(self._core.storage):
            yield partial(self._gate.record, action, as_line(target, MAX_TARGET), detail, by=operator.name)


def _storage_error(error: StorageError) -> CallError:
    """Return the answer for a storage that did not answer, or for a document that others changed all the time."""
    if isinstance(error, DocumentContended):
        return CallError(409, f"{str(error)[:1].upper()}{str(error)[1:]}.", headers=RETRY)
    return CallError(503, f"The storage could not answer: {error}", headers=RETRY)


def _field_of(name: str, error: ValueError) -> str:
    """Return the field that an error of the gate is about: the one that it begins with, or what its kind tells."""
    fields = FIELDS[name]
    first = str(error).removeprefix("unknown ").removeprefix("the ").split(" ", 1)[0].rstrip(":")
    for field in (first, f"{first}s"):
        if field in fields:
            return field
    if isinstance(error, InvalidCost):
        return "units"
    if isinstance(error, InvalidLimit) and "limits" in fields:
        return "limits"
    return "client" if "client" in fields else "rule"


def _document(entry: Any) -> dict[str, Any]:
    """Return an entry of an operators' document for JSON."""
    return {name: _plain(value) for name, value in entry._asdict().items()}


def _without_name(entry: Any) -> Any:
    """Return what decides whether an entry has an effect: of its client only the kind."""
    if isinstance(entry, RuleSwitch):
        return entry
    parts = entry.client.split(":", 2)
    kind = parts[: 2 if parts[0] in WITH_DETAIL else 1]
    return kind[0], kind[-1], *((entry.limits, entry.tier, entry.rules) if isinstance(entry, ClientOverride) else ())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _instant(value)
    return list(value) if isinstance(value, tuple) else value


def _instant(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _usage_document(usage: Usage) -> dict[str, Any]:
    return {
        "rule": usage.rule,
        "name": usage.name,
        "limit": usage.limit.text,
        "quota": usage.quota,
        "used": usage.used,
        "remaining": usage.remaining,
        "granted": usage.granted,
        "resets_at": _instant(usage.resets_at),
        "previous": usage.previous,
        "blocked": usage.blocked,
        "degraded": usage.degraded,
    }


def _wrong_policy(error: PolicyError) -> dict[str, Any]:
    problems = [{"where": one.where, "message": one.message, "line": one.line} for one in error.problems]
    return {"valid": False, "problems": problems, "changes": []}


def _joined(client: str | Sequence[str]) -> str:
    return client if isinstance(client, str) else " + ".join(client)


def _of(rule: str | None) -> str:
    return "" if rule is None else f" of rule {rule}"
