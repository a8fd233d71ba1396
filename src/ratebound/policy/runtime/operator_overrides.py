"""Operators' overrides: another tier, or other limits, for one client. They win over the policy's. No I/O here.

compiled_rules.py makes plans of their limits.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from ratebound.flow import Flow
from ratebound.policy.identity.identify import IdentityKinds
from ratebound.policy.model.policy import Override
from ratebound.policy.problem import as_texts, shown
from ratebound.policy.runtime.client_name import ANY_KIND, canonical_client
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

MAX_OVERRIDES = 10_000
MAX_LIMITS = 200  # characters
MAX_RULES = 100  # that one override names


class ClientOverride(NamedTuple):
    """Other limits, or another tier, that an operator has given to a client.

    Attributes:
        client: The client, as it was written.
        limits: The other limits, as text; None if it gives a tier.
        tier: The other tier; None if it gives limits.
        rules: The names of the rules that get the limits; empty for all rules.
        since: When it began.
        until: When it ends; None if only `remove_override` ends it.
        reason: Why, in one line for operators.
        by: The name of the operator.
    """

    client: str
    limits: str | None
    tier: str | None
    rules: tuple[str, ...]
    since: datetime
    until: datetime | None = None
    reason: str = ""
    by: str = ""

    def concerns(self, rule: str) -> bool:
        """Return True if this override has limits for a rule.

        Args:
            rule: The name of a rule.
        """
        return self.limits is not None and (not self.rules or rule in self.rules)


def _read(raw: Any) -> ClientOverride:
    client, limits, tier, rules = (
        raw["client"],
        raw.get("limits"),
        raw.get("tier"),
        _checked_rules(raw.get("rules", ())),
    )
    if not isinstance(client, str) or not isinstance(limits, str | None) or not isinstance(tier, str | None):
        raise TypeError("expected text as client, limits and tier")
    Override(client, limits, tier, rules)
    return ClientOverride(client, limits, tier, rules, *read_common(raw))


def _write(override: ClientOverride) -> dict[str, Any]:
    given = {"client": override.client, "limits": override.limits, "tier": override.tier, "rules": list(override.rules)}
    return given | write_common(override.since, override.until, override.reason, override.by)


def _target(override: ClientOverride) -> tuple[str, frozenset[str]]:
    return override.client, frozenset(override.rules)


OVERRIDES: DocumentKind[ClientOverride] = DocumentKind("overrides", MAX_OVERRIDES, _read, _write, _target)


def overriding(
    storage: Any,
    client: object,
    limits: object,
    tier: object,
    rules: object,
    for_: object,
    reason: object,
    by: object,
    check: Callable[[ClientOverride], None],
    kinds: IdentityKinds = ANY_KIND,
    tell: Tell = None,
) -> Flow[ClientOverride]:
    """Give a client other limits or another tier. Return the override. It takes the place of one for the same client
    and the same rules. `check` raises ValueError if it does not fit the policy; other mistakes raise ValueError too.
    """
    name, names = canonical_client(client, kinds), _checked_rules(rules)
    why, who = checked_line("reason", reason, MAX_REASON), checked_line("by", by, MAX_BY)
    if limits is not None and not isinstance(limits, str):
        raise ValueError(f"limits must be text like '100/minute', 'deny' or 'unlimited', not {shown(limits)}")
    text = None if limits is None else checked_line("limits", limits, MAX_LIMITS)
    named = None if tier is None else checked_line("tier", tier, MAX_LIMITS)
    length = checked_length(for_, "an override")
    Override(name, text, named, names)

    def change(draft: DocumentDraft[ClientOverride], now: datetime) -> tuple[ClientOverride, Change]:
        override = ClientOverride(name, text, named, names, now, after(now, length), why, who)
        check(override)
        draft.entries = [one for one in draft.entries if not _is_of(one, name, names)]
        draft.check_room("remove some, or write them in the policy")
        draft.entries.append(override)
        what = f"tier {named}" if text is None else text
        return override, Change(now, who, "override", name, described(override.until, why, what, *_of_rules(names)))

    return (yield from changing(storage, OVERRIDES, change, tell))


def removing_override(
    storage: Any, client: object, rules: object = (), tell: Tell = None, by: object = ""
) -> Flow[bool]:
    """Remove the override of a client for exactly these rules, or the one for all rules. Return False if there is none.

    Raises ValueError for a name that cannot be read.
    """
    names, who = _checked_rules(rules), checked_line("by", by, MAX_BY)

    def change(draft: DocumentDraft[ClientOverride], now: datetime) -> tuple[bool, Change | None]:
        # A name that cannot be read may be in the document anyway: a person has written it, or a later version.
        name = client if any(one.client == client for one in draft.entries) else canonical_client(client)
        others = [one for one in draft.entries if not _is_of(one, str(name), names)]
        if len(others) == len(draft.entries):
            return False, None
        draft.entries = others
        return True, Change(now, who, "remove override", str(name), ", ".join(_of_rules(names)))

    return (yield from changing(storage, OVERRIDES, change, tell))


def _is_of(override: ClientOverride, client: str, rules: Iterable[str]) -> bool:
    return override.client == client and set(override.rules) == set(rules)


def _checked_rules(given: object) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(as_texts("rules", given)))
    if len(names) > MAX_RULES:
        raise ValueError(f"an override names at most {MAX_RULES} rules, not {len(names)}: leave 'rules' out for all")
    return names


def _of_rules(names: Iterable[str]) -> list[str]:
    text = ", ".join(names)
    return [f"for the rules {text}"] if text else []
