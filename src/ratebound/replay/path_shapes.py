"""Names of endpoints, and shapes of paths: paths of one shape match the same rules. Compiled where that can be done.

Most paths of a log hold ids, and so are new. A plain segment that no rule spells out can only match a parameter, so all
such segments are alike: `/users/17` and `/users/4711` have the shape `/users/*`, and the rules for it are found once.

Quicker still: if each segment is a number or has no digits, and no rule spells out a number, then the path with zeros
in place of its digits says all. There are few such paths.
"""

import re
from collections.abc import Iterable
from typing import Final

from ratebound.ledger.endpoint import ID, LIKE_AN_ID, LONGEST, METHODS, MOST_SEGMENTS, endpoint_name
from ratebound.policy.model.policy import Policy

MOST_KNOWN: Final = 20_000  # segments that are remembered
LONGEST_SEGMENT: Final = 64
PLAIN: Final = re.compile(r"[0-9a-z_-]+")
ANY: Final = "*"  # no plain segment
ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")  # bytes: ten times as fast as text
NUMBERED: Final = re.compile(rb"(?:/(?:0+|[^/0-9]*))+")


class PathShapes:
    """The names and shapes of the paths of a log, for some policies."""

    __slots__ = ("_has_numbers", "_literals", "_names", "_shapes", "is_possible")

    def __init__(self, policies: Iterable[Policy]) -> None:
        matches = [match for policy in policies for match in (*(rule.match for rule in policy.rules), *policy.exempt)]
        steps = [step for match in matches for pattern in match.patterns for step in pattern.segments]
        self._literals = {step for step in steps if isinstance(step, str)}
        # A pattern like /v{n} looks into a segment.
        self.is_possible = all(step is None or isinstance(step, str) for step in steps)
        self._has_numbers = any(step.isdecimal() for step in self._literals)
        self._names: dict[str, str] = {}
        self._shapes: dict[str, str] = {}

    def describe(self, method: str, path: str) -> tuple[str, str]:
        """Return the name of an endpoint, and the shape of its path: the path itself if it has no shape."""
        segments = path.split("/")
        if len(segments) > MOST_SEGMENTS + 1 or segments[0]:
            return endpoint_name(method, path), path
        names: list[str] = []
        shapes: list[str] = []
        is_plain = self.is_possible and "//" not in path  # which servers read in several ways
        for segment in segments:
            if segment.isdecimal() and segment.isascii():
                names.append(ID)
                shapes.append(segment if segment in self._literals else ANY)
                continue
            name = self._names.get(segment)
            if name is None:
                name = self._learn(segment)
            names.append(name)
            if is_plain:
                shape = self._shapes.get(segment, "")
                if not shape and segment:
                    is_plain = False
                shapes.append(shape)
        verb = method if method in METHODS else "OTHER"
        return f"{verb} {'/'.join(names)}"[:LONGEST], "/".join(shapes) if is_plain else path

    def is_numbered(self, zeroed: bytes) -> bool:
        """Return True if all paths that are alike but for the digits of numbers have the same name and rules. `zeroed`
        is one of them, with zeros in place of its digits."""
        return self.is_possible and not self._has_numbers and NUMBERED.fullmatch(zeroed) is not None

    def _learn(self, segment: str) -> str:
        name = ID if LIKE_AN_ID.fullmatch(segment) else segment
        if len(self._names) >= MOST_KNOWN:
            self._names.clear()
            self._shapes.clear()
        shape = ""
        if PLAIN.fullmatch(segment):
            shape = segment if segment in self._literals else ANY
        if len(segment) <= LONGEST_SEGMENT:
            self._names[segment] = name
            self._shapes[segment] = shape
        return name
