"""The index that finds the rules of a request: by host, then along the segments of its path, then by method.

The time of a search depends on the length of the request and on the rules that match it, not on the number of rules.
Rules with the same path are indexed by their address ranges, headers and tiers too, and wildcards by a fragment of
their text (see wildcard.py).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from ratebound.http.prefix import Address
from ratebound.policy.match.conditions import Match, Ranges
from ratebound.policy.match.host import hosts_of
from ratebound.policy.match.path import Mixed, Pattern, Segments, Step
from ratebound.policy.match.request import RequestView
from ratebound.policy.match.wildcard import Fragment, WildcardIndex, fragments_of

FEW = 4  # fewer rules than this are compared one by one, which is as fast as an index


class Indexed(Protocol):
    """Anything that has a match and an order, such as a compiled rule."""

    @property
    def match(self) -> Match:
        """Return the conditions of the rule."""

    @property
    def order(self) -> int:
        """Return the position of the rule in its policy."""


R = TypeVar("R", bound=Indexed)


class IndexKey(NamedTuple):
    """A key by which a rule can be indexed. `kind` is 'range', 'tier', or for a header 'present', 'equal' or 'like'."""

    kind: str
    name: str
    value: str | Fragment = ""


Condition = Sequence[Sequence[IndexKey]]  # one of its values must match; each value can be indexed by any of its keys
Entry = tuple[R, Sequence[Condition]]  # a rule, and its conditions by which it is not indexed yet


def conditions_of(match: Match) -> list[Condition]:
    """Return the conditions by which a rule can be indexed. A header that must be absent cannot be looked up."""
    found: list[Condition] = []
    if match.addresses:
        found.append([[IndexKey("range", text)] for text in match.addresses])
    for header in match.header_matches:
        if header.values is True:
            found.append([[IndexKey("present", header.name)]])
        elif header.values:
            found.append([_value_keys(header.name, value) for value in header.values])
    if match.tiers:
        found.append([[IndexKey("tier", tier)] for tier in match.tiers])
    return found


def _value_keys(name: str, value: str) -> list[IndexKey]:
    if "*" not in value:
        return [IndexKey("equal", name, value)]
    return [IndexKey("like", name, fragment) for fragment in fragments_of(value.split("*"))]


class HeaderIndex(Generic[R]):
    """The condition indexes of one header: for its presence, for its values, and for wildcards."""

    __slots__ = ("equal", "like", "present")

    def __init__(self, indexes: dict[IndexKey, "ConditionIndex[R]"]) -> None:
        self.present = next((index for key, index in indexes.items() if key.kind == "present"), None)
        self.equal = {str(key.value): index for key, index in indexes.items() if key.kind == "equal"}
        like = {key.value: index for key, index in indexes.items() if isinstance(key.value, Fragment)}
        self.like = WildcardIndex(like) if like else None

    def find(self, lines: list[str]) -> Iterator["ConditionIndex[R]"]:
        """Yield the indexes of the rules that these lines of the header may match."""
        if self.present is not None and lines:
            yield self.present
        for line in lines:
            text = line.strip()
            if text in self.equal:
                yield self.equal[text]
            if self.like is not None:
                yield from self.like.find(text)


class ConditionIndex(Generic[R]):
    """Rules with the same path, host and method, each indexed by its most selective condition. Rules that share a key
    are in an index of their own, by their remaining conditions."""

    __slots__ = ("headers", "is_plain", "plain", "ranges", "tiers")

    def __init__(self, entries: Sequence[Entry[R]]) -> None:
        self.plain: list[R] = []  # rules that are not indexed: few, or without such a condition
        by_key: dict[IndexKey, list[Entry[R]]] = {}
        counts = Counter(
            key for _, conditions in entries for condition in conditions for keys in condition for key in keys
        )
        for rule, conditions in entries:
            if len(entries) < FEW or not conditions:
                self.plain.append(rule)
                continue
            rarest = [[min(keys, key=counts.__getitem__) for keys in condition] for condition in conditions]
            best = min(range(len(rarest)), key=lambda place: max(counts[key] for key in rarest[place]))
            rest = [condition for place, condition in enumerate(conditions) if place != best]
            for key in dict.fromkeys(rarest[best]):
                by_key.setdefault(key, []).append((rule, rest))
        indexes = {key: ConditionIndex(same_key) for key, same_key in by_key.items()}
        self.is_plain = not indexes
        self.tiers = {key.name: index for key, index in indexes.items() if key.kind == "tier"}
        ranges = [(key.name, index) for key, index in indexes.items() if key.kind == "range"]
        self.ranges = Ranges(ranges) if ranges else None
        by_header: dict[str, dict[IndexKey, ConditionIndex[R]]] = {}
        for key, index in indexes.items():
            if key.kind in ("present", "equal", "like"):
                by_header.setdefault(key.name, {})[key] = index
        self.headers = {name: HeaderIndex(of_header) for name, of_header in by_header.items()}

    def find(self, request: RequestView, address: Address | None, tier: str | None) -> list[R]:
        """Return the rules that may match. It leaves out no rule that does; the caller checks each of them."""
        if self.is_plain:
            return self.plain
        found = list(self.plain)
        for index in self._indexes(request, address, tier):
            found += index.find(request, address, tier)
        return found

    def _indexes(
        self, request: RequestView, address: Address | None, tier: str | None
    ) -> "Iterator[ConditionIndex[R]]":
        if self.ranges is not None:
            yield from self.ranges.find(address)
        if self.headers:
            headers, sent = self.headers, dict(request.headers)
            for name in headers if len(headers) < len(sent) else sent:
                if name in headers and name in sent:
                    yield from headers[name].find(request.header_lines(name))
        if tier is not None and tier in self.tiers:
            yield self.tiers[tier]


class Leaf(Generic[R]):
    """The rules whose patterns end at one node of the tree, by method."""

    __slots__ = ("by_method", "other", "rules")

    def __init__(self) -> None:
        self.rules: dict[int, R] = {}  # by order

    def build(self) -> None:
        """Build the indexes, once all rules have been added."""
        entries: list[Entry[R]] = [(rule, conditions_of(rule.match)) for rule in self.rules.values()]
        any_method = [entry for entry in entries if not entry[0].match.methods]
        by_method: dict[str, list[Entry[R]]] = {}
        for entry in entries:
            for method in entry[0].match.methods:
                by_method.setdefault(method, [*any_method]).append(entry)
        self.other = ConditionIndex(any_method)  # for methods that no rule names
        self.by_method = {method: ConditionIndex(of_method) for method, of_method in by_method.items()}


class Node(Generic[R]):
    """One step of a path in the tree, with the nodes of the steps after it."""

    __slots__ = ("leaf", "literals", "mixed", "parameter", "rest", "wildcards")

    def __init__(self) -> None:
        self.literals: dict[str, Node[R]] = {}
        self.mixed: dict[tuple[str, ...], tuple[Mixed, Node[R]]] = {}  # by their pieces
        self.wildcards: WildcardIndex[list[tuple[Mixed, Node[R]]]] | None = None  # the same, indexed
        self.parameter: Node[R] | None = None
        self.leaf: Leaf[R] | None = None
        self.rest: Leaf[R] | None = None

    def step(self, step: Step) -> "Node[R]":
        """Return the node after this step of a pattern; create it if there is none."""
        if step is None:
            self.parameter = self.parameter or Node()
            return self.parameter
        if isinstance(step, str):
            return self.literals.setdefault(step, Node())
        return self.mixed.setdefault(step.pieces, (step, Node()))[1]

    def build(self) -> None:
        """Index the steps with wildcards, once all rules have been added."""
        counts = Counter(fragment for pieces in self.mixed for fragment in fragments_of(pieces))
        by_fragment: dict[Fragment, list[tuple[Mixed, Node[R]]]] = {}
        for pieces, after in self.mixed.items():
            by_fragment.setdefault(min(fragments_of(pieces), key=counts.__getitem__), []).append(after)
        self.wildcards = WildcardIndex(by_fragment)


class Tree(Generic[R]):
    """The path patterns of one host, as a tree of steps."""

    def __init__(self) -> None:
        self._root: Node[R] = Node()
        self._leaves: dict[int, Leaf[R]] = {}  # by id
        self._mixed: dict[int, Node[R]] = {}  # those with wildcards, by id

    def add(self, rule: R, pattern: Pattern | None) -> None:
        """Add a rule under a pattern; None stands for every path."""
        node = self._root
        for step in pattern.segments if pattern is not None else ():
            if isinstance(step, Mixed):
                self._mixed[id(node)] = node
            node = node.step(step)
        if pattern is not None and pattern.whole:
            node.leaf = leaf = node.leaf or Leaf()
        else:
            node.rest = leaf = node.rest or Leaf()
        leaf.rules[rule.order] = rule
        self._leaves[id(leaf)] = leaf

    def build(self) -> None:
        """Build the indexes of all leaves and nodes, once all rules have been added."""
        for leaf in self._leaves.values():
            leaf.build()
        for node in self._mixed.values():
            node.build()

    def leaves(self, segments: Segments) -> list[Leaf[R]]:
        """Return the leaves whose patterns match one reading of a path."""
        found: list[Leaf[R]] = []
        nodes = [self._root]
        for segment in segments:
            following: list[Node[R]] = []
            for node in nodes:
                if node.rest is not None:
                    found.append(node.rest)
                after = node.literals.get(segment)
                if after is not None:
                    following.append(after)
                if node.parameter is not None:
                    following.append(node.parameter)
                if node.wildcards is not None:
                    for candidates in node.wildcards.find(segment):
                        following += [after for step, after in candidates if step.matches(segment)]
            if not following:
                return found
            nodes = following
        for node in nodes:
            if node.rest is not None:
                found.append(node.rest)
            if node.leaf is not None:
                found.append(node.leaf)
        return found


class Index(Generic[R]):
    """An index of rules. It finds the rules that a request matches."""

    def __init__(self, rules: Iterable[R]) -> None:
        self._anywhere: Tree[R] = Tree()
        self._hosts: dict[str, Tree[R]] = {}
        self._methods: set[str] = set()
        self.wants_tier = self.has_paths = False
        self.is_plain = True  # no rule looks at anything but path, method and host
        for rule in rules:
            self._methods.update(rule.match.methods)
            self.wants_tier |= bool(rule.match.tiers)
            self.has_paths |= bool(rule.match.patterns)
            self.is_plain &= rule.match.is_plain
            trees = [self._hosts.setdefault(host, Tree()) for host in rule.match.hosts] or [self._anywhere]
            for tree in trees:
                for pattern in rule.match.patterns or (None,):
                    tree.add(rule, pattern)
        for tree in (self._anywhere, *self._hosts.values()):
            tree.build()
        self.has_hosts, self.has_methods = bool(self._hosts), bool(self._methods)

    def find(
        self,
        request: RequestView,
        readings: Sequence[Segments],
        methods: Sequence[str],
        address: Address | None,
        tier: str | None,
    ) -> list[R]:
        """Return the rules that the request matches, in the order of the policy."""
        found: dict[int, R] = {}
        if len(methods) > 1:  # a request may name any number of overrides: drop those that no rule names
            methods = [method for place, method in enumerate(methods) if place == 0 or method in self._methods]
        for tree in self._trees(request) if self._hosts else (self._anywhere,):
            for reading in readings:
                for leaf in tree.leaves(reading):
                    for method in methods:
                        for rule in leaf.by_method.get(method, leaf.other).find(request, address, tier):
                            match = rule.match
                            if match.is_plain or match.condition_failure(request, tier, address) is None:
                                found[rule.order] = rule
        return list(found.values()) if len(found) < 2 else [found[order] for order in sorted(found)]

    def _trees(self, request: RequestView) -> Iterable[Tree[R]]:
        trees = {id(self._anywhere): self._anywhere}
        for host in hosts_of(request):
            patterns, rest = [host], host
            while "." in rest:
                rest = rest.partition(".")[2]
                patterns.append(f"*.{rest}")
            for pattern in patterns:
                tree = self._hosts.get(pattern)
                if tree is not None:
                    trees[id(tree)] = tree
        return trees.values()
