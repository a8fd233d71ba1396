"""What a gate answers: a decision, whose rules it came from, and what the rules in shadow would have said."""

from collections.abc import Sequence
from typing import NamedTuple

from ratebound.decision import Decision
from ratebound.http.client_ip import ClientAddress
from ratebound.policy.match.request import Identity
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Rule


class Shadow(NamedTuple):
    """What a rule in shadow, or a rule's candidate limits, would have said. `decision` is None for a plain `deny`."""

    rule: Rule
    candidate: bool
    identity: Identity
    decision: Decision | None

    @property
    def allowed(self) -> bool:
        return self.decision is not None and self.decision.allowed


class Grounds(NamedTuple):
    """What verdicts have in common that come from the same rules."""

    kind: str
    policy: Policy
    stage: str
    asked: Sequence[Rule] = ()


class Verdict:
    """True when the request may go ahead.

    `kind` says how that was found: `limited` (rules were asked, `decision` has their answer), `unlimited` (they are so
    for this client), `unmatched` (there is no rule for it), `exempt`, `allow`, `block`, `deny` or `off`.
    A `block` or `deny` was refused without asking the storage, and no wait helps. A verdict is that of one `stage`;
    `earlier` is what the early one said, where one call asked both.
    """

    __slots__ = ("allowed", "client", "decision", "earlier", "grounds", "identities", "shadows")

    def __init__(
        self,
        grounds: Grounds,
        client: ClientAddress | None,
        allowed: bool = True,
        decision: Decision | None = None,
        identities: Sequence[Identity] = (),
        shadows: tuple[Shadow, ...] = (),
    ) -> None:
        self.grounds = grounds
        self.client = client
        self.allowed = allowed
        self.decision = decision
        self.identities = identities  # by whom each of `asked` counts
        self.shadows = shadows
        self.earlier: Verdict | None = None

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        rules = ", ".join(rule.name for rule in self.asked)
        return f"Verdict(allowed={self.allowed}, kind={self.kind!r}, rules=[{rules}], decision={self.decision!r})"

    @property
    def kind(self) -> str:
        return self.grounds.kind

    @property
    def policy(self) -> Policy:
        return self.grounds.policy

    @property
    def stage(self) -> str:
        return self.grounds.stage

    @property
    def asked(self) -> Sequence[Rule]:
        """A rule for each of `decision.asks`, in order; the one that denies, of a deny."""
        return self.grounds.asked

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rule of each of `decision.limits`, in the same order."""
        if self.decision is None:
            return ()
        return tuple(rule for rule, ask in zip(self.asked, self.decision.asks, strict=True) for _ in ask[1])

    @property
    def rule(self) -> Rule | None:
        """The one to tell the client of: the decision's most pressing, or the one that denies."""
        place = self._place()
        return None if place is None else self.asked[place]

    @property
    def identity(self) -> Identity | None:
        """By whom that rule counts."""
        place = self._place()
        return None if place is None else self.identities[place]

    @property
    def address(self) -> str:
        """The client's address, as far as it can be trusted."""
        return "" if self.client is None else self.client.text

    @property
    def message(self) -> str:
        """The rule's own words for a refusal, if it has any."""
        return "" if self.rule is None else self.rule.message

    @property
    def documentation(self) -> str:
        """Where the rule says that clients can read more, if it does."""
        return "" if self.rule is None else self.rule.documentation

    def after(self, earlier: "Verdict") -> "Verdict":
        """The same, with what the early stage said before it."""
        self.earlier = earlier
        return self

    def with_decision(self, decision: Decision) -> "Verdict":
        """The same after its decision was settled."""
        settled = Verdict(self.grounds, self.client, self.allowed, decision, self.identities, self.shadows)
        settled.earlier = self.earlier
        return settled

    def _place(self) -> int | None:
        if not self.asked:
            return None
        if self.decision is None or len(self.asked) == 1:
            return 0
        decisive = self.decision.limit
        return next(place for place, ask in enumerate(self.decision.asks) if any(decisive is limit for limit in ask[1]))


class Judged(NamedTuple):
    """Told to a gate's listeners for each verdict, beside events.Decided for the decision in it."""

    verdict: Verdict
    seconds: float
