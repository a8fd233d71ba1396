"""Operators' switches: a rule, or all rules, turned on, off or into shadow, or a candidate promoted. No I/O here.

switched_policy.py applies them to a policy.
"""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from ratebound.flow import Flow
from ratebound.policy.problem import check_choice, shown
from ratebound.policy.runtime.operator_documents import (
    MAX_BY,
    MAX_REASON,
    Change,
    DocumentDraft,
    DocumentKind,
    Tell,
    after,
    changing,
    checked_length,
    checked_line,
    described,
    read_common,
    write_common,
)

SwitchState = Literal["on", "off", "shadow", "candidate"]
STATES: tuple[str, ...] = get_args(SwitchState)
STATES_OF_ALL = ("on", "off", "shadow")
MAX_SWITCHES = 1_000
MAX_NAME = 200  # characters of the name of a rule
MAX_CANDIDATE = 1_000  # characters
ALL = "all rules"  # the target of a change of the switch for all rules


class RuleSwitch(NamedTuple):
    """A switch that an operator has set for a rule, or for all rules.

    Attributes:
        rule: The name of the rule; empty for all rules.
        state: 'on', 'off', 'shadow' or 'candidate'.
        since: When it began.
        until: When it ends; None if only `remove_switch` ends it.
        reason: Why, in one line for operators.
        by: The name of the operator.
        candidate: The text of the candidate limits that were promoted.
    """

    rule: str
    state: str
    since: datetime
    until: datetime | None = None
    reason: str = ""
    by: str = ""
    candidate: str = ""


class RuleSwitches:
    """The switches that hold, by rule. `for_all` is the switch for all rules, None if there is none. `off` are the
    names of the rules that are switched off."""

    def __init__(self, entries: tuple[RuleSwitch, ...]) -> None:
        self.entries = entries
        self.by_rule = {one.rule: one for one in self.entries if one.rule}
        self.for_all = next((one.state for one in self.entries if not one.rule), None)
        self.off = frozenset(name for name, one in self.by_rule.items() if one.state == "off")


@lru_cache(maxsize=64)
def switches_of(entries: tuple[RuleSwitch, ...]) -> RuleSwitches:
    """Return these switches, as one object for all gates of the process: policies are compiled for the object."""
    return RuleSwitches(entries)


def _read(raw: Any) -> RuleSwitch:
    rule, state, candidate = raw["rule"], raw["state"], raw.get("candidate", "")
    check_choice("state", state, STATES if rule else STATES_OF_ALL)
    if not isinstance(rule, str) or not isinstance(candidate, str):
        raise TypeError("expected text as rule and candidate")
    return RuleSwitch(rule, state, *read_common(raw), candidate)


def _write(switch: RuleSwitch) -> dict[str, Any]:
    given = {"rule": switch.rule, "state": switch.state, "candidate": switch.candidate}
    return given | write_common(switch.since, switch.until, switch.reason, switch.by)


def _target(switch: RuleSwitch) -> str:
    return switch.rule


RULE_SWITCHES: DocumentKind[RuleSwitch] = DocumentKind("switches", MAX_SWITCHES, _read, _write, _target)


def switching(
    storage: Any,
    state: object,
    rule: object,
    for_: object,
    reason: object,
    by: object,
    check: Callable[[RuleSwitch], RuleSwitch],
    tell: Tell = None,
) -> Flow[RuleSwitch]:
    """Set the switch of a rule, or of all rules if `rule` is None. Return the switch. It takes the place of one that
    the rule has. `check` returns the switch as it is to be stored, or raises ValueError if it does not fit the policy;
    other mistakes raise ValueError too."""
    name = _checked_rule(rule)
    turned = check_choice("state", state, STATES if name else STATES_OF_ALL)
    why, who = checked_line("reason", reason, MAX_REASON), checked_line("by", by, MAX_BY)
    length = checked_length(for_, "a switch")

    def change(draft: DocumentDraft[RuleSwitch], now: datetime) -> tuple[RuleSwitch, Change]:
        switch = check(RuleSwitch(name, turned, now, after(now, length), why, who))
        checked_line("candidate", switch.candidate, MAX_CANDIDATE)
        draft.entries = [one for one in draft.entries if one.rule != name]
        draft.check_room("remove some, or change the policy")
        draft.entries.append(switch)
        what = [turned, switch.candidate] if switch.candidate else [turned]
        return switch, Change(now, who, "switch", name or ALL, described(switch.until, why, *what))

    return (yield from changing(storage, RULE_SWITCHES, change, tell))


def removing_switch(storage: Any, rule: object, tell: Tell = None, by: object = "") -> Flow[bool]:
    """Remove the switch of a rule, or of all rules if `rule` is None. Return False if there is none."""
    name, who = _checked_rule(rule), checked_line("by", by, MAX_BY)

    def change(draft: DocumentDraft[RuleSwitch], now: datetime) -> tuple[bool, Change | None]:
        others = [one for one in draft.entries if one.rule != name]
        if len(others) == len(draft.entries):
            return False, None
        draft.entries = others
        return True, Change(now, who, "remove switch", name or ALL, "")

    return (yield from changing(storage, RULE_SWITCHES, change, tell))


def _checked_rule(given: object) -> str:
    if given is None:
        return ""
    if not isinstance(given, str) or not given:
        raise ValueError(f"rule must be the name of a rule, or None for all rules, not {shown(given)}")
    return checked_line("rule", given, MAX_NAME)
