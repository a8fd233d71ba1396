"""The verdict of a gate: a decision, the rules that it comes from, and what the rules in shadow would have decided."""

from collections.abc import Sequence
from typing import NamedTuple

from ratebound.decision import Decision
from ratebound.http.client_ip import ClientAddress
from ratebound.policy.match.request import Identity
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Rule
from ratebound.policy.runtime.operator_blocks import Block
from ratebound.slots import slots_of


class Shadow(NamedTuple):
    """The decision that a rule in shadow, or a rule's candidate limits, would have made.

    Attributes:
        rule: The rule.
        candidate: True if the rule's candidate limits answered.
        identity: The identity that was counted.
        decision: The decision; None for a plain `deny`.
    """

    rule: Rule
    candidate: bool
    identity: Identity
    decision: Decision | None

    @property
    def allowed(self) -> bool:
        """True if the request would have been allowed."""
        return self.decision is not None and self.decision.allowed


class Grounds(NamedTuple):
    """The part of a verdict that is the same for all requests to which the same rules apply."""

    kind: str
    policy: Policy
    stage: str
    asked: Sequence[Rule] = ()
    block: Block | None = None
    block_wait: int | None = None  # microseconds until that block ends; None if it does not end by itself
    is_overridden: bool = False  # an operator has given this client other limits, which may have queues or slots


class Verdict:
    """The answer of a gate for one request at one stage. It is true if the request may proceed.

    `kind` says how it was found: `limited` (the storage was asked, see `decision`), `unlimited` (no rule limits this
    client), `unmatched` (no rule matched), `exempt`, `allow`, `block`, `deny`, `off`, or `shed` (the process is
    overloaded). A `block` or `deny` is made without asking for limits, and no wait helps, unless it is an operator's
    `block` that ends by itself. `earlier` is the verdict of the early stage, if one call decided both.

    Args:
        grounds: What is the same for all requests to which the same rules apply.
        client: The address of the client.
        allowed: True if the request may proceed.
        decision: The decision about the limits; None if none were asked.
        identities: The identity that each of `asked` counts.
        shadows: What rules in shadow would have decided.
        unreadable: For a `deny` because a rule could not read a value of the request: a sentence for the client.

    Examples:
        >>> from ratebound.policy import Gate, Policy, RequestView, Rule
        >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
        >>> verdict = gate.decide(RequestView("GET", "/orders", user="42"))
        >>> if verdict:
        ...     print(verdict.kind, verdict.rule.name, verdict.identity.key)
        limited api user:42
    """

    __slots__ = ("allowed", "client", "decision", "earlier", "grounds", "identities", "shadows", "unreadable")

    def __init__(
        self,
        grounds: Grounds,
        client: ClientAddress | None,
        allowed: bool = True,
        decision: Decision | None = None,
        identities: Sequence[Identity] = (),
        shadows: tuple[Shadow, ...] = (),
        unreadable: str = "",
    ) -> None:
        self.grounds = grounds
        self.client = client
        self.allowed = allowed
        self.decision = decision
        self.identities = identities  # one for each of `asked`
        self.shadows = shadows
        self.unreadable = unreadable
        self.earlier: Verdict | None = None

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        rules = ", ".join(rule.name for rule in self.asked)
        return f"Verdict(allowed={self.allowed}, kind={self.kind!r}, rules=[{rules}], decision={self.decision!r})"

    @property
    def kind(self) -> str:
        """The way in which this verdict was found; see the class."""
        return self.grounds.kind

    @property
    def policy(self) -> Policy:
        """The policy that was in force."""
        return self.grounds.policy

    @property
    def stage(self) -> str:
        """The stage whose rules were applied: 'early' or 'late'."""
        return self.grounds.stage

    @property
    def asked(self) -> Sequence[Rule]:
        """The rules of `decision.asks`, in the same order; for a `deny`, the rule that denies."""
        return self.grounds.asked

    @property
    def block(self) -> Block | None:
        """The operator's block of this client; None if none was found. Its reason is not for the client."""
        return self.grounds.block

    @property
    def block_wait(self) -> int | None:
        """The microseconds until `block` ends; None if there is none, or if it does not end by itself."""
        return self.grounds.block_wait

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of `decision.limits`, in the same order."""
        if self.decision is None:
            return ()
        return tuple(rule for rule, ask in zip(self.asked, self.decision.asks, strict=True) for _ in ask[1])

    @property
    def rule(self) -> Rule | None:
        """The rule to name to the client: that of the most pressing limit, or the one that denies."""
        place = self._place()
        return None if place is None else self.grounds.asked[place]

    @property
    def identity(self) -> Identity | None:
        """The identity that `rule` counts."""
        place = self._place()
        return None if place is None else self.identities[place]

    @property
    def address(self) -> str:
        """The client's address, as far as it can be trusted."""
        return "" if self.client is None else self.client.text

    @property
    def shed(self) -> bool:
        """True if denied only because the process is overloaded: a 503, and no strike.

        Limits are lowered (see `Decision.shed`), or too many requests are in the process.
        """
        return self.kind == "shed" if self.decision is None else self.decision.shed

    @property
    def message(self) -> str:
        """The message for a rejection: why the request is unreadable, or the message of `rule`; may be empty."""
        return self.told()[1]

    @property
    def documentation(self) -> str:
        """The URL that `rule` gives for its documentation, or an empty text."""
        return self.told()[2]

    def told(self) -> tuple[Rule | None, str, str]:
        """Return what a rejection tells: `rule`, `message` and `documentation`, for which the rule is found once."""
        rule = self.rule
        if rule is None:
            return None, self.unreadable, ""
        return rule, self.unreadable or rule.message, rule.documentation

    @property
    def decisions(self) -> list[Decision]:
        """All decisions that were made for the request: of the early stage, of this one, and of rules in shadow."""
        found = [] if self.earlier is None else self.earlier.decisions
        made = (self.decision, *(shadow.decision for shadow in self.shadows))
        return [*found, *(decision for decision in made if decision is not None)]

    @property
    def holding(self) -> list[Decision]:
        """The decisions that have taken slots, which have to be released."""
        return [decision for decision in self.decisions if decision.allowed and slots_of(decision.asks, -1)]

    def after(self, earlier: "Verdict") -> "Verdict":
        """Set the verdict of the early stage, and return this one.

        Args:
            earlier: The verdict of the early stage.
        """
        self.earlier = earlier
        return self

    def with_decision(self, decision: Decision) -> "Verdict":
        """Return this verdict with the decision that settling has made.

        Args:
            decision: The decision as it stands after settling.
        """
        settled = Verdict(self.grounds, self.client, self.allowed, decision, self.identities, self.shadows)
        settled.earlier = self.earlier
        return settled

    def _place(self) -> int | None:
        asked = self.grounds.asked
        if not asked:
            return None
        if self.decision is None or len(asked) == 1:
            return 0
        decisive = self.decision.limit
        return next(place for place, ask in enumerate(self.decision.asks) if any(decisive is limit for limit in ask[1]))


class Judged(NamedTuple):
    """An event that a gate's listeners receive for each verdict, besides `events.Decided` for its decision.

    Attributes:
        verdict: The verdict.
        seconds: The time that it took, including the storage.
    """

    verdict: Verdict
    seconds: float
