"""The fast path: requests whose rules look at nothing but path, method, host and identity.

The rules that apply are found once for all requests that are alike in that, and remembered. Everything else (lists of
clients, tiers, shadows, functions that find limits or costs, identities to await) is for general_path.py. Both decide
alike.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ratebound.decision import Decision, Plan
from ratebound.http.client_ip import ClientAddress
from ratebound.limit import Ask, Limit
from ratebound.policy.identity.identify import Alternatives, RequestIdentities, pending_of, resolve
from ratebound.policy.match.conditions import methods_of
from ratebound.policy.match.index import Index
from ratebound.policy.match.path import Segments, spellings
from ratebound.policy.match.reading import Paths, texts_of
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.model.policy import Policy
from ratebound.policy.runtime.bounded_memo import BoundedMemo, remember
from ratebound.policy.runtime.compiled_rules import CompiledExemption, CompiledRule, CompiledStage, releases
from ratebound.policy.runtime.verdict import Grounds
from ratebound.storage.memory_states import States
from ratebound.storage.quick_states import QuickStates

MAX_LENGTH: Final = 256  # characters of what is remembered
ANYTHING: Final[list[Segments]] = [()]

Key = tuple[tuple[str, ...] | str, Paths, str | None, str]


def readings_of(request: RequestView) -> list[Segments]:
    """Return all readings of a request's path, and of the route that the router found for it."""
    paths, route = request.paths, request.route
    if isinstance(paths, str) and route is None:
        return list(spellings(paths))
    texts = [*texts_of(paths), *([] if route is None else [route])]
    readings = dict.fromkeys([reading for text in texts for reading in spellings(text)])
    for prefix in () if isinstance(paths, str) else paths.prefixes:
        (front, *_) = spellings(prefix)
        readings |= dict.fromkeys([front + one for one in readings if one[: len(front)] != front])
    return list(readings)


def is_exempt(
    exempt: Index[CompiledExemption],
    request: RequestView,
    readings: list[Segments],
    methods: tuple[str, ...],
    client: ClientAddress | None,
) -> bool:
    """Return True if an exemption matches the request and releases it; see `releases`."""
    found = exempt.find(request, readings, methods, None if client is None else client.ip, None)
    return any(releases(one.match, request, methods) for one in found)


class Asked:
    """All that a verdict is made of but the storage's answer: its grounds, the client, the identity that each rule
    counts, and the asks for the storage. `plan` has the limits of the only ask."""

    __slots__ = ("_cost", "_key", "_plan", "asks", "client", "grounds", "identities")

    def __init__(
        self,
        grounds: Grounds,
        client: ClientAddress,
        identities: Sequence[Identity],
        asks: Sequence[Ask],
        plan: Plan | None,
    ) -> None:
        self.grounds = grounds
        self.client = client
        self.identities = identities
        self.asks = asks
        self._plan = plan
        self._key, self._cost = ("", 0) if plan is None else (asks[0][0], asks[0][2])

    def decide(self, states: States) -> Decision:
        """Spend what is asked from memory. There must be asks."""
        plan = self._plan
        return states.decide(self.asks) if plan is None else states.hit(plan, self._key, self._cost)

    def hit(self, quick: QuickStates) -> Decision | None:
        """Spend what is asked from quick states. Return None, having changed nothing, if they cannot."""
        plan = self._plan
        return quick.hit(plan, self._key, self._cost) if plan is not None and plan.plain else None


class MatchedRules:
    """Rules that apply to one request together, and what they ask of the storage.

    In most policies a client that is not authenticated counts by its address, which is that of the peer unless a proxy
    is trusted. If all rules do so, `is_by_address` is True, and `known` has the whole answer for such clients, by peer.
    `is_straight` is False if the general path must decide; it need not look for `bounds` again. With `calls_functions`
    it may have to decide after all: if a function returns something to await.
    """

    __slots__ = (
        "_asked",
        "_by_address",
        "_plan",
        "bounds",
        "by_user",
        "calls_functions",
        "grounds",
        "is_by_address",
        "is_straight",
        "known",
    )

    def __init__(self, kind: str, policy: Policy, stage: str, bounds: Sequence[CompiledRule] = ()) -> None:
        asked: list[tuple[CompiledRule, tuple[Limit, ...], int]] = [
            (bound, bound.flat, bound.rule.cost)
            for bound in bounds
            if isinstance(bound.flat, tuple) and isinstance(bound.rule.cost, int)
        ]
        rules = tuple(bound.rule for bound, *_ in asked)
        self.grounds = Grounds("limited" if asked else kind, policy, stage, rules)
        self.bounds = bounds
        self.is_straight = all(bound.is_straight for bound in bounds)
        self.calls_functions = any(bound.calls_functions for bound in bounds)
        self._asked = asked
        self._plan = Plan(asked[0][1]) if len(asked) == 1 else None
        by_address = [(_by_address(bound.by), plan, cost) for bound, plan, cost in asked]
        self._by_address = [(identify, plan, cost) for identify, plan, cost in by_address if identify is not None]
        self.is_by_address = len(self._by_address) == len(asked)
        self.by_user = any(kind.name == "user" for bound, *_ in asked for parts in bound.by for kind in parts)
        self.known: dict[str | None, Asked] = BoundedMemo()

    def ask(self, request: RequestView, client: ClientAddress, owner: object, *, is_peer: bool) -> Asked | None:
        """Return what these rules ask for a request; None if an identity has to be awaited. It is noted on the request,
        so that no function is called again.

        `is_peer` means that the client's address is the peer's: then the answer is remembered.
        """
        identities: list[Identity] = []
        asks: list[Ask] = []
        if self.is_by_address and (request.user is None or not self.by_user):
            for identify, plan, cost in self._by_address:
                who, key = identify(client)
                identities.append(who)
                asks.append((key, plan, cost, None, None))
            asked = Asked(self.grounds, client, tuple(identities), tuple(asks), self._plan)
            is_short = len(request.peer or "") <= MAX_LENGTH
            return remember(self.known, request.peer, asked) if is_peer and is_short else asked
        found = request.found = pending_of(request, owner) or RequestIdentities(owner, client)
        for bound, plan, cost in self._asked:
            identity = resolve(bound.by, request, found, bound.rule.name)
            if not isinstance(identity, Identity):
                return None
            identities.append(identity)
            asks.append((identity.key, plan, cost, None, None))
        return Asked(self.grounds, client, identities, asks, self._plan)


def _by_address(by: Alternatives) -> Callable[[ClientAddress], tuple[Identity, str]] | None:
    """Return the function that identifies an anonymous client, if that takes nothing but its address."""
    for parts in by:
        if not any(kind.name == "user" for kind in parts):
            return parts[0].of_client if len(parts) == 1 else None
    return None


class FastPath:
    """The fast path of one stage. It can be used only if `is_open`. `only` has the rules if they are the same for every
    request."""

    __slots__ = (
        "_exempt",
        "_free",
        "_has_hosts",
        "_has_methods",
        "_has_paths",
        "_known",
        "_of",
        "_same",
        "_stage",
        "_unmatched",
        "is_open",
        "only",
        "pressure",
    )

    def __init__(self, policy: Policy, name: str, stage: CompiledStage, exempt: Index[CompiledExemption]) -> None:
        self.pressure = policy.pressure  # while it is not calm, the general path decides
        self._stage = stage
        self._exempt = exempt
        self._of = policy, name
        self._free = MatchedRules("exempt", *self._of)
        self._unmatched = MatchedRules("unmatched", *self._of)
        indexes = (stage.rules, stage.defaults, exempt)
        self.is_open = all(index.is_plain for index in indexes)
        self._has_hosts = any(index.has_hosts for index in indexes)
        self._has_paths = self._has_hosts or any(index.has_paths for index in indexes)  # a path may name a host
        self._has_methods = any(index.has_methods for index in indexes)
        self._known: dict[Key, MatchedRules] = BoundedMemo()
        self._same: dict[tuple[int, ...], MatchedRules] = BoundedMemo()
        is_one = self.is_open and not (self._has_paths or self._has_methods)
        self.only = self._find(RequestView("GET", "/"), ANYTHING, ("GET",)) if is_one else None

    def find(self, request: RequestView) -> MatchedRules:
        """Return the rules that apply."""
        if self.only is not None:
            return self.only
        methods = methods_of(request) if self._has_methods else ("",)
        paths: Paths = ""
        route, host = None, ""
        if self._has_paths:
            paths, route = request.paths, request.route
            if self._has_hosts:
                host = request.host
        key = (methods, paths, route, host)
        try:
            return self._known[key]
        except KeyError:
            found = self._find(request, readings_of(request) if self._has_paths else ANYTHING, methods)
        length = len(paths) if isinstance(paths, str) else sum(map(len, (paths.target, *texts_of(paths))))
        if sum(map(len, methods)) + length + len(host) <= MAX_LENGTH:
            remember(self._known, key, found)
        return found

    def _find(self, request: RequestView, readings: list[Segments], methods: tuple[str, ...]) -> MatchedRules:
        if is_exempt(self._exempt, request, readings, methods, None):
            return self._free
        bounds = self._stage.applying(request, readings, methods, None, None)
        if not bounds:
            return self._unmatched
        places = tuple([bound.order for bound in bounds])
        return self._same.get(places) or remember(self._same, places, MatchedRules("unlimited", *self._of, bounds))
