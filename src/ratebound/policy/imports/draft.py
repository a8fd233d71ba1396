"""A policy that is being imported, and its output as YAML with comments, without a YAML library."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratebound.limit import UNITS
from ratebound.policy.identity.identify import BUILT_IN
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.coverage import covers
from ratebound.policy.problem import PolicyError, Problem

PLAIN = re.compile(
    r"[A-Za-z/][A-Za-z0-9_/.+-]*(?: [A-Za-z0-9_/.+-]+)*|[0-9]+/[a-z0-9][A-Za-z0-9 -]*[A-Za-z0-9]|[0-9]+ concurrent"
)
WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")  # some YAML parsers do not read these as strings
NAME_LENGTH = 40


class Imported(NamedTuple):
    """The result of an import.

    Attributes:
        text: The text of a policy, in YAML.
        lost: Notes about everything that differs or is missing.
    """

    text: str
    lost: tuple[str, ...]


@dataclass
class Draft:
    """A policy that is being imported: its settings and rules as in a policy file, and notes about what was lost."""

    system: str
    settings: dict[str, Any] = field(default_factory=dict)
    identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    tiers: dict[str, list[str]] = field(default_factory=dict)  # with the clients of each
    overrides: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    descriptors: list[dict[str, Any]] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)  # by name of the rule
    lost: dict[str, None] = field(default_factory=dict)
    _finals: list[tuple[str, Match]] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def lose(self, what: str) -> None:
        """Note something that cannot be imported, or only with a difference. A repeated note is kept once."""
        self.lost.setdefault(what)

    def name(self, wanted: str) -> str:
        """Return a valid name for a rule that no other rule has."""
        base = re.sub("[^A-Za-z0-9_.:-]+", "-", wanted).strip("-._:")[: NAME_LENGTH - 4].rstrip("-._:") or "rule"
        number, name = 2, base
        while name in self._names:
            name, number = f"{base}-{number}", number + 1
        return name

    def add(self, wanted: str, remark: str = "", **keys: Any) -> str:
        """Add a rule, without its empty keys. Return its name; "" if it could never be reached, so it was left out."""
        name = self.name(wanted)
        match = Match(**keys.get("match") or {})
        for before, wide in self._finals:
            if covers(wide, match):
                self.lose(f"{wanted} is left out: {before} comes before it and applies to the same requests")
                return ""
        if keys.get("final"):
            self._finals.append((name, match))
        self._names.add(name)
        self.rules.append({"name": name} | {key: value for key, value in keys.items() if value})
        if remark:
            self.remarks[name] = remark
        return name

    def add_descriptor(self, wanted: str, remark: str, **keys: Any) -> str:
        """Add a rule for descriptors, without its empty keys, and return its name."""
        name = self.name(wanted)
        self._names.add(name)
        self.descriptors.append({"name": name} | {key: value for key, value in keys.items() if value})
        self.remarks[name] = remark
        return name

    def end(self, wanted: str, match: Mapping[str, Any], since: int) -> None:
        """End the search for requests of this match, so that no later rule applies to them.

        The last rule added since there were `since` rules becomes final if it has the same match. Otherwise a final
        rule without limits is added.
        """
        found = Match(**match)
        last = self.rules[-1] if len(self.rules) > since else {}
        if any(covers(wide, found) for _, wide in self._finals):
            return
        if last and last.get("match", {}) == match and last.get("mode") != "shadow":
            last["final"] = True
            self._finals.append((last["name"], found))
        else:
            self.add(wanted, match=dict(match), limits="unlimited", final=True)

    def imported(self) -> Imported:
        """Return the text of the policy and the notes. Raises PolicyError if there is no limit to import."""
        if all(one["limits"] == "unlimited" for one in (*self.rules, *self.overrides, *self.descriptors)):
            why = "; ".join(self.lost) or "it has no rate limit"
            raise PolicyError([Problem((), f"nothing to import from {self.system}: {why}")])
        if any("address" in str(rule.get("by")) for rule in self.rules):
            self.lose(f"{self.system} counts each IPv6 address as a client; this policy counts each /64 (ipv6: 64)")
        lines = [f"# Imported from {self.system}. Review it, then run: ratebound policy check FILE"]
        if self.lost:
            lines += ["#", "# Not carried over, or carried over with a difference:"]
            lines += [f"# - {' '.join(what.split())}" for what in self.lost]
        lines.append("")
        for key, value in self.settings.items():
            lines.append(f"{key}: {flow(value)}")
        lines += _block("identities", self.identities)
        if any(self.tiers.values()):
            lines += _block("tiers", self.tiers)
        elif self.tiers:
            lines.append(f"tiers: {flow(list(self.tiers))}")
        lists = (("overrides", self.overrides), ("rules", self.rules), ("descriptors", self.descriptors))
        for key, entries in lists:
            if entries:
                lines += ["", f"{key}:"]
            for entry in entries:
                remark = self.remarks.get(entry.get("name", "")) if key != "overrides" else None
                lines += [f"  # {' '.join(remark.split())}"] if remark else []
                lead = "  - "
                for name, value in entry.items():
                    lines.append(f"{lead}{name}: {flow(value)}")
                    lead = "    "
        return Imported("\n".join(lines) + "\n", tuple(self.lost))


def _block(key: str, entries: Mapping[str, Any]) -> list[str]:
    return [f"{key}:", *(f"  {flow(name)}: {flow(value)}" for name, value in entries.items())] if entries else []


def flow(value: Any) -> str:
    """Return a value as YAML on one line. Text that could be read as something else is quoted; `$` is doubled, since
    the loader replaces `${NAME}`."""
    if isinstance(value, Reference):
        return quoted(value.text)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str):
        text = value.replace("$", "$$")
        plain = PLAIN.fullmatch(text) and text.lower() not in WORDS
        return text if plain else quoted(text)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Iterable):
        return "[" + ", ".join(flow(one) for one in value) + "]"
    return str(value)


def identity_name(text: str) -> str:
    """Return a valid name for an identity that has no other meaning in a policy."""
    name = re.sub("[^a-z0-9_]+", "-", text.lower()).strip("-_")
    taken = name in (*BUILT_IN, "jwt", "header", "cookie") or not name[:1].isalpha()
    return f"x-{name}"[:32].rstrip("-") if taken else name[:32]


def function_name(text: str) -> str:
    """Return the name of the function that returns such an identity for a request."""
    name = re.sub("[^A-Za-z0-9]+", "_", text).strip("_") or "x"
    return f"{name}_of" if not name[0].isdecimal() else f"x{name}_of"


def is_true(value: Any) -> bool:
    """Return True if a setting is on. Other YAML parsers accept more words for it than ours."""
    return value is True or str(value).lower() in ("true", "yes", "on")


def number(value: Any) -> float | None:
    """Return a number that may be written as `60`, `60.0` or `"0.5"`; None if it is not a number."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def period_text(seconds: int) -> str:
    """Return a number of seconds as the period of a limit, in the largest unit that divides it."""
    for unit in ("day", "hour", "minute"):
        length = UNITS[unit] // UNITS["second"]
        if seconds % length == 0:
            return unit if seconds == length else f"{seconds // length} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"


def quoted(text: str) -> str:
    """Return the text in double quotes, with the escapes of YAML for characters that cannot be printed."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


class Reference(NamedTuple):
    """Text whose `${NAME}` are references to the environment: its `$` are not doubled."""

    text: str


def literal(path: str) -> str:
    """Return the pattern that matches exactly this path."""
    text = path.replace("{", "%7B").replace("}", "%7D").replace("*", "%2A")
    return text if text.startswith("/") else f"/{text}"


def prefixed(prefix: str) -> list[str]:
    """Return the patterns for all paths that begin with this text."""
    path = literal(prefix)
    if path.endswith("/"):
        return [f"{path}{{rest*}}"]
    return [f"{path}/{{rest*}}", f"{path}*/{{rest*}}"]


def from_regex(regex: str) -> list[str] | None:
    """Return the patterns for a regular expression that patterns can express; None for all others."""
    text = regex.removeprefix("^")
    anchored = text != regex
    end = text.endswith("$")
    text = text.removesuffix("$")
    for tail in ("/(.*)", "/(.+)", "/.*", "/.+", "(/|$)", "(?:/|$)", "(/.*)?"):
        if text.endswith(tail):
            text, rest = text.removesuffix(tail), True
            break
    else:
        rest = False
    optional = text.endswith("/?")
    text = text.removesuffix("/?")
    for some in (r"\d+", "[0-9]+", "[^/]+", "[a-z0-9]+", r"[\w-]+", r"\w+"):
        text = text.replace(f"({some})", "\0").replace(some, "\0")
    text = text.replace(r"\.", "\1").replace(r"\-", "-").replace(r"\/", "/")
    if not anchored or not text.startswith("/") or re.search(r"[\\^$.|?*+()\[\]{}]", text):
        return None
    path = text.replace("\1", ".").replace("\0", "*")
    if "**" in path:
        return None
    if rest:
        return [f"{path.rstrip('/')}/{{rest*}}"]
    if end or optional:
        return [path or "/"]
    if path.endswith("/"):
        return [f"{path}{{rest*}}"]
    return [f"{path}/{{rest*}}", *([] if path.endswith("*") else [f"{path}*/{{rest*}}"])]
