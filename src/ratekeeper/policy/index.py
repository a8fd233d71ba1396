"""Finds the rules of a request among many: by host, then along the segments of its path, then by method.

What a request costs here depends on its own length and on the rules that it meets, not on how many there are. Rules on
one path that differ by range, header or tier are filed under that, too.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from ratekeeper.http.prefix import Address
from ratekeeper.policy.match import Match, Ranges, host_of
from ratekeeper.policy.path import Mixed, Pattern, Segments, Step
from ratekeeper.policy.request import RequestView


class Indexed(Protocol):
    """Anything that has a match; `order` is its place among the others."""

    @property
    def match(self) -> Match: ...

    @property
    def order(self) -> int: ...


R = TypeVar("R", bound=Indexed)


class Drawer(Generic[R]):
    """Rules with the same path, host and method, filed under the condition that tells them apart best."""

    __slots__ = ("headers", "plain", "ranges", "tiers")

    def __init__(self, rules: Iterable[R]) -> None:
        self.plain: list[R] = []
        self.tiers: dict[str, list[R]] = {}
        self.headers: dict[str, dict[str, list[R]]] = {}
        ranges: list[tuple[str, R]] = []
        for rule in rules:
            match = rule.match
            exact = next(
                (h for h in match.header_matches if not isinstance(h.values, bool) and "*" not in "".join(h.values)),
                None,
            )
            if match.addresses:
                ranges += [(text, rule) for text in match.addresses]
            elif exact is not None and not isinstance(exact.values, bool):
                for value in exact.values:
                    self.headers.setdefault(exact.name, {}).setdefault(value, []).append(rule)
            elif match.tiers:
                for tier in match.tiers:
                    self.tiers.setdefault(tier, []).append(rule)
            else:
                self.plain.append(rule)
        self.ranges = Ranges(ranges) if ranges else None

    def find(self, request: RequestView, address: Address | None, tier: str | None) -> list[R]:
        if self.ranges is None and not self.headers and not self.tiers:
            return self.plain
        found = [*self.plain, *(self.ranges.find(address) if self.ranges is not None else ())]
        for name, values in self.headers.items():
            for line in request.header_lines(name):
                found += values.get(line.strip(), ())
        if self.tiers:
            found += self.tiers.get(tier or "", ())
        return found


class Leaf(Generic[R]):
    """The rules at one end of a path, by method."""

    __slots__ = ("drawers", "other", "rules")

    def __init__(self) -> None:
        self.rules: list[R] = []

    def close(self) -> None:
        methods = {method for rule in self.rules for method in rule.match.methods}
        self.other = Drawer(rule for rule in self.rules if not rule.match.methods)
        self.drawers = {
            method: Drawer(rule for rule in self.rules if not rule.match.methods or method in rule.match.methods)
            for method in methods
        }


class Node(Generic[R]):
    """One step along a path."""

    __slots__ = ("leaf", "literals", "mixed", "parameter", "rest")

    def __init__(self) -> None:
        self.literals: dict[str, Node[R]] = {}
        self.mixed: dict[tuple[str, ...], tuple[Mixed, Node[R]]] = {}  # by their pieces
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


class Tree(Generic[R]):
    """The paths of one host."""

    def __init__(self) -> None:
        self._root: Node[R] = Node()
        self._leaves: list[Leaf[R]] = []

    def add(self, rule: R, pattern: Pattern | None) -> None:
        node = self._root
        for step in pattern.segments if pattern is not None else ():
            node = node.step(step)
        if pattern is not None and pattern.whole:
            node.leaf = leaf = node.leaf or Leaf()
        else:
            node.rest = leaf = node.rest or Leaf()
        if rule not in leaf.rules:
            leaf.rules.append(rule)
        self._leaves.append(leaf)

    def close(self) -> None:
        for leaf in self._leaves:
            leaf.close()

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
                if node.mixed:
                    following += [after for step, after in node.mixed.values() if step.matches(segment)]
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
        self.wants_tier = False
        for rule in rules:
            self.wants_tier |= bool(rule.match.tiers)
            trees = [self._hosts.setdefault(host, Tree()) for host in rule.match.hosts] or [self._anywhere]
            for tree in trees:
                for pattern in rule.match.patterns or (None,):
                    tree.add(rule, pattern)
        for tree in (self._anywhere, *self._hosts.values()):
            tree.close()

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
        for tree in self._trees(request.host) if self._hosts else (self._anywhere,):
            for reading in readings:
                for leaf in tree.leaves(reading):
                    for method in methods:
                        for rule in leaf.drawers.get(method, leaf.other).find(request, address, tier):
                            match = rule.match
                            if match.is_plain or match.condition(request, tier, address) is None:
                                found[rule.order] = rule
        return list(found.values()) if len(found) < 2 else [found[order] for order in sorted(found)]

    def _trees(self, text: str) -> list[Tree[R]]:
        host = host_of(text)
        trees = [self._anywhere]
        if host in self._hosts:
            trees.append(self._hosts[host])
        rest = host
        while "." in rest:
            rest = rest.partition(".")[2]
            tree = self._hosts.get(f"*.{rest}")
            if tree is not None:
                trees.append(tree)
        return trees
