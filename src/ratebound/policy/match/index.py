"""Finds the rules of a request among many: by host, then along the segments of its path, then by method.

What a request costs here depends on its own length and on the rules that it meets, not on how many there are. Rules on
one path that differ by range, header or tier are filed under that, too; segments and headers with wildcards under the
piece of text that tells them apart.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from ratebound.http.prefix import Address
from ratebound.policy.match.conditions import Match, Ranges
from ratebound.policy.match.host import hosts_of
from ratebound.policy.match.path import Mixed, Pattern, Segments, Step
from ratebound.policy.match.request import RequestView
from ratebound.policy.match.wildcard import Filing, WildcardIndex, filings

FEW = 4  # rules that are as quickly compared as looked up


class Indexed(Protocol):
    """Anything that has a match; `order` is its place among the others."""

    @property
    def match(self) -> Match: ...

    @property
    def order(self) -> int: ...


R = TypeVar("R", bound=Indexed)


class IndexKey(NamedTuple):
    """What a rule can be filed under: a range, a tier, or a header that is there, is a value or is like one."""

    kind: str
    name: str
    value: str | Filing = ""


Condition = Sequence[Sequence[IndexKey]]  # of its values any must hold; each can be filed under any of its keys
Sheet = tuple[R, Sequence[Condition]]  # a rule, and those of its conditions that it is not filed under yet


def conditions_of(match: Match) -> list[Condition]:
    """All that a rule can be filed under. A header that must not be there is nothing to look up."""
    found: list[Condition] = []
    if match.addresses:
        found.append([[IndexKey("range", text)] for text in match.addresses])
    for header in match.header_matches:
        if header.values is True:
            found.append([[IndexKey("there", header.name)]])
        elif header.values:
            found.append([_value_keys(header.name, value) for value in header.values])
    if match.tiers:
        found.append([[IndexKey("tier", tier)] for tier in match.tiers])
    return found


def _value_keys(name: str, value: str) -> list[IndexKey]:
    if "*" not in value:
        return [IndexKey("is", name, value)]
    return [IndexKey("like", name, filing) for filing in filings(value.split("*"))]


class Shelf(Generic[R]):
    """The drawers of one header: by its being there, by value, by what its value is like."""

    __slots__ = ("exact", "like", "there")

    def __init__(self, drawers: dict[IndexKey, "Drawer[R]"]) -> None:
        self.there = next((drawer for key, drawer in drawers.items() if key.kind == "there"), None)
        self.exact = {str(key.value): drawer for key, drawer in drawers.items() if key.kind == "is"}
        like = {key.value: drawer for key, drawer in drawers.items() if isinstance(key.value, Filing)}
        self.like = WildcardIndex(like) if like else None

    def open(self, lines: list[str]) -> Iterator["Drawer[R]"]:
        if self.there is not None and lines:
            yield self.there
        for line in lines:
            text = line.strip()
            if text in self.exact:
                yield self.exact[text]
            if self.like is not None:
                yield from self.like.find(text)


class Drawer(Generic[R]):
    """Rules with the same path, host and method, filed under the condition that tells them apart best. Those that are
    filed alike lie in a drawer of their own, by what is left."""

    __slots__ = ("headers", "is_plain", "plain", "ranges", "tiers")

    def __init__(self, sheets: Sequence[Sheet[R]]) -> None:
        self.plain: list[R] = []
        filed: dict[IndexKey, list[Sheet[R]]] = {}
        counts = Counter(
            key for _, conditions in sheets for condition in conditions for keys in condition for key in keys
        )
        for rule, conditions in sheets:
            if len(sheets) < FEW or not conditions:
                self.plain.append(rule)
                continue
            places = [[min(keys, key=counts.__getitem__) for keys in condition] for condition in conditions]
            best = min(range(len(places)), key=lambda place: max(counts[key] for key in places[place]))
            rest = [condition for place, condition in enumerate(conditions) if place != best]
            for key in dict.fromkeys(places[best]):
                filed.setdefault(key, []).append((rule, rest))
        drawers = {key: Drawer(alike) for key, alike in filed.items()}
        self.is_plain = not drawers
        self.tiers = {key.name: drawer for key, drawer in drawers.items() if key.kind == "tier"}
        ranges = [(key.name, drawer) for key, drawer in drawers.items() if key.kind == "range"]
        self.ranges = Ranges(ranges) if ranges else None
        names: dict[str, dict[IndexKey, Drawer[R]]] = {}
        for key, drawer in drawers.items():
            if key.kind in ("there", "is", "like"):
                names.setdefault(key.name, {})[key] = drawer
        self.headers = {name: Shelf(those) for name, those in names.items()}

    def find(self, request: RequestView, address: Address | None, tier: str | None) -> list[R]:
        if self.is_plain:
            return self.plain
        found = list(self.plain)
        for drawer in self._open(request, address, tier):
            found += drawer.find(request, address, tier)
        return found

    def _open(self, request: RequestView, address: Address | None, tier: str | None) -> "Iterator[Drawer[R]]":
        if self.ranges is not None:
            yield from self.ranges.find(address)
        if self.headers:
            headers, asked = self.headers, dict(request.headers)
            for name in headers if len(headers) < len(asked) else asked:
                if name in headers and name in asked:
                    yield from headers[name].open(request.header_lines(name))
        if tier is not None and tier in self.tiers:
            yield self.tiers[tier]


class Leaf(Generic[R]):
    """The rules at one end of a path, by method."""

    __slots__ = ("drawers", "other", "rules")

    def __init__(self) -> None:
        self.rules: dict[int, R] = {}  # by order

    def close(self) -> None:
        sheets: list[Sheet[R]] = [(rule, conditions_of(rule.match)) for rule in self.rules.values()]
        of_any = [sheet for sheet in sheets if not sheet[0].match.methods]
        by_method: dict[str, list[Sheet[R]]] = {}
        for sheet in sheets:
            for method in sheet[0].match.methods:
                by_method.setdefault(method, [*of_any]).append(sheet)
        self.other = Drawer(of_any)
        self.drawers = {method: Drawer(all_) for method, all_ in by_method.items()}


class Node(Generic[R]):
    """One step along a path."""

    __slots__ = ("leaf", "literals", "mixed", "parameter", "rest", "wildcards")

    def __init__(self) -> None:
        self.literals: dict[str, Node[R]] = {}
        self.mixed: dict[tuple[str, ...], tuple[Mixed, Node[R]]] = {}  # by their pieces
        self.wildcards: WildcardIndex[list[tuple[Mixed, Node[R]]]] | None = None  # the same, to be found by segment
        self.parameter: Node[R] | None = None
        self.leaf: Leaf[R] | None = None
        self.rest: Leaf[R] | None = None

    def step(self, step: Step) -> "Node[R]":
        if step is None:
            self.parameter = self.parameter or Node()
            return self.parameter
        if isinstance(step, str):
            return self.literals.setdefault(step, Node())
        return self.mixed.setdefault(step.pieces, (step, Node()))[1]

    def close(self) -> None:
        counts = Counter(filing for pieces in self.mixed for filing in filings(pieces))
        filed: dict[Filing, list[tuple[Mixed, Node[R]]]] = {}
        for pieces, after in self.mixed.items():
            filed.setdefault(min(filings(pieces), key=counts.__getitem__), []).append(after)
        self.wildcards = WildcardIndex(filed)


class Tree(Generic[R]):
    """The paths of one host."""

    def __init__(self) -> None:
        self._root: Node[R] = Node()
        self._leaves: dict[int, Leaf[R]] = {}  # by id
        self._mixed: dict[int, Node[R]] = {}  # those with wildcards, by id

    def add(self, rule: R, pattern: Pattern | None) -> None:
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

    def close(self) -> None:
        for leaf in self._leaves.values():
            leaf.close()
        for node in self._mixed.values():
            node.close()

    def leaves(self, segments: Segments) -> list[Leaf[R]]:
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
                    for alike in node.wildcards.find(segment):
                        following += [after for step, after in alike if step.matches(segment)]
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
    """Rules, to be found by request."""

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
            tree.close()
        self.has_hosts, self.has_methods = bool(self._hosts), bool(self._methods)

    def find(
        self,
        request: RequestView,
        readings: Sequence[Segments],
        methods: Sequence[str],
        address: Address | None,
        tier: str | None,
    ) -> list[R]:
        """The rules whose match the request meets, in order."""
        found: dict[int, R] = {}
        if len(methods) > 1:  # a request may ask for any number of them: those that no rule names are as good as none
            methods = [method for place, method in enumerate(methods) if place == 0 or method in self._methods]
        for tree in self._trees(request) if self._hosts else (self._anywhere,):
            for reading in readings:
                for leaf in tree.leaves(reading):
                    for method in methods:
                        for rule in leaf.drawers.get(method, leaf.other).find(request, address, tier):
                            match = rule.match
                            if match.is_plain or match.condition(request, tier, address) is None:
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
