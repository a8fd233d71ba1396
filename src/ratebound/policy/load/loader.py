"""From a file to a policy. Every mistake is told, by file, line and place, before anything of it runs."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ratebound.policy.functions import Functions, find_function, find_nothing
from ratebound.policy.identity.source import read_source
from ratebound.policy.load.document import SUFFIXES, Lines, parse
from ratebound.policy.match.conditions import Match
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import Computed, Rule
from ratebound.policy.problem import Place, PolicyError, Problem, Problems, nearest, shown
from ratebound.policy.schema import KEYS

T = TypeVar("T")

REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")


class _AnyFunction(dict[str, Callable[..., Any]]):
    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return find_nothing


# Takes every name, for those who only look at a file: each function finds nothing.
ANY_FUNCTION: Functions = _AnyFunction()


def load_policy(
    path: str | os.PathLike[str],
    *,
    functions: Functions | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """Read a policy file: .yaml, .json or .toml. `functions` are those that it calls by name."""
    file = Path(path)
    format = SUFFIXES.get(file.suffix.lower())
    try:
        if format is None:
            raise ValueError("expected a name that ends in .yaml, .yml, .json or .toml")
        text = _text_of(path)
    except (OSError, ValueError) as error:
        raise PolicyError([Problem((), f"cannot read the policy: {error}")], str(path)) from None
    return read_policy(text, format=format, file=str(path), functions=functions, environ=environ)


def _text_of(path: str | os.PathLike[str]) -> str:
    """Read a file without waiting: opening a FIFO would take until somebody writes to it."""
    flags = getattr(os, "O_NONBLOCK", 0)
    with open(path, encoding="utf-8", opener=lambda name, plain: os.open(name, plain | flags)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("expected a file, not a FIFO or a device")
        return opened.read()


def read_policy(
    given: str | Mapping[str, Any],
    *,
    format: str = "yaml",
    file: str = "",
    functions: Functions | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """Read a policy from its text, or from a mapping with the keys of a file, where functions may stand as they are.
    Raises PolicyError with everything that is wrong; `file` is the name that it tells."""
    lines: Lines = {}
    tree: Any = given
    if not isinstance(given, Mapping):
        try:
            tree, lines = parse(given, format)
        except PolicyError as error:
            raise PolicyError(error.problems, file) from None
    reading = _PolicyReader({} if functions is None else functions, os.environ if environ is None else environ)
    try:
        policy = reading.policy(tree)
    except RecursionError:
        raise PolicyError([Problem((), "cannot read the policy: it is nested too deep")], file) from None
    if policy is None or reading.problems.found:
        found = [problem._replace(line=_line(problem.place, lines)) for problem in reading.problems.found]
        raise PolicyError(sorted(dict.fromkeys(found), key=lambda problem: problem.line or 0), file)
    return policy


def _line(place: Place, lines: Lines) -> int | None:
    """That of the place, or of the nearest thing around it."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)


class _PolicyReader:
    """Reads one tree of values. What cannot be read is noted. The rest of it stands in for the whole, so that
    everything else that is wrong is found, too, and nothing that is wrong only because of it."""

    def __init__(self, functions: Functions, environ: Mapping[str, str]) -> None:
        self.problems = Problems()
        self._functions = functions
        self._environ = environ
        self._has_rules = False
        self._broken: dict[Place, set[str]] = {}  # of rules and exemptions, by place: the keys that cannot be read

    def policy(self, tree: Any) -> Policy | None:
        if tree is None or tree == {}:
            self.problems.add((), "the policy is empty: give it 'rules'")
            return None
        tree = self.filled(tree, ())
        unset = [*self.problems.found]
        known = self.mapping(tree, (), "policy")
        known.pop("$schema", None)
        self._has_rules = isinstance(known.get("rules"), list)
        switch = known.get("switch")
        if isinstance(switch, bool):
            known["switch"] = "on" if switch else "off"
        arguments: dict[str, Any] = {}
        for name, value in known.items():
            read = {"rules": self.rule, "exempt": self.match, "overrides": self.override}.get(name)
            if read is not None:
                arguments[name] = self.each(value, name, read)
            elif name == "identities":
                arguments[name] = self.identities(value)
            elif name == "by":
                arguments[name] = self.by(value, (name,))
            elif name in ("headers", "refusal", "trusted"):
                arguments[name] = self.options(value, name)
            elif name in ("allow", "block", "tiers") and isinstance(value, str):
                arguments[name] = [value]
            elif value is not None:
                arguments[name] = value
        policy = None
        try:
            policy = Policy(**arguments)
        except PolicyError as error:
            self.problems.found += [problem for problem in error.problems if not self._follows(problem.place)]
        places = [problem.place for problem in unset]
        self.problems.found[len(unset) :] = [
            problem
            for problem in self.problems.found[len(unset) :]
            if not any(problem.place[: len(place)] == place for place in places)
        ]
        return policy

    def _follows(self, place: Place) -> bool:
        """Return True if the problem at this place may be there only because something else could not be read."""
        if place == ("rules",):
            return any(len(problem.place) < 2 for problem in self.problems.found)
        broken = self._broken.get(place[:2], set())
        if place[0] == "rules" and len(place) == 2:  # it is never reached
            return bool(broken & {"", "match", "stage"})
        if place[0] == "exempt":
            return bool(broken)
        if place[0] == "overrides" and "rules" in place[2:]:
            return not self._has_rules or any("name" in keys for keys in self._broken.values())
        return False

    def filled(self, value: Any, place: Place) -> Any:
        """The tree with its references to the environment filled in."""
        if isinstance(value, Mapping):
            return {name: self.filled(one, (*place, name)) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.filled(one, (*place, index)) for index, one in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        text = REFERENCE.sub(lambda found: self._reference(found, place), value)
        whole = REFERENCE.fullmatch(value) is not None
        if whole and re.fullmatch("[0-9]{1,15}", text):
            return int(text)
        return {"true": True, "false": False}.get(text, text) if whole else text

    def _reference(self, found: re.Match[str], place: Place) -> str:
        name, default = found.groups()
        if found.group() == "$$":
            return "$"
        if name is None:
            self.problems.add(
                place, f"cannot read {found.group()!r}: expected ${{NAME}} or ${{NAME:-default}}; $$ is a $"
            )
            return ""
        value = self._environ.get(name) or default  # as in a shell, ':-' stands in for an empty value, too
        if value is None:
            self.problems.add(place, f"{name} is not set in the environment: set it, or write ${{{name}:-default}}")
            return "unset"
        return value

    def mapping(self, value: Any, place: Place, kind: str) -> dict[str, Any]:
        """A mapping of this kind, without the keys that it does not have."""
        if not isinstance(value, Mapping):
            self.problems.add(place, f"expected keys with values, not {shown(value)}")
            return {}
        for name in value:
            if name not in KEYS[kind]:
                self.problems.add((*place, str(name)), f"unknown key {shown(name)}: {nearest(name, KEYS[kind])}")
        return {name: one for name, one in value.items() if name in KEYS[kind]}

    def each(self, value: Any, name: str, read: Callable[[Any, Place], T]) -> list[T]:
        if not isinstance(value, list):
            self.problems.add((name,), f"expected a list, not {shown(value)}")
            return []
        return [read(one, (name, index)) for index, one in enumerate(value)]

    def _break(self, place: Place, *keys: str) -> None:
        self._broken.setdefault(place[:2], set()).update(keys)

    def _told(self, place: Place, error: PolicyError) -> None:
        with self.problems.at(*place):
            raise error

    def rule(self, value: Any, place: Place) -> Rule:
        if isinstance(value, Rule):
            return value
        before = len(self.problems.found)
        known = self.mapping(value, place, "rule")
        if not isinstance(value, Mapping):
            self._break(place, "")
        for name in ("name", "limits"):
            if name not in known and isinstance(value, Mapping):
                self.problems.add(place, f"a rule needs {'a name' if name == 'name' else name}")
                self._break(place, name)
        if "match" in known:
            known["match"] = self.match(known["match"], (*place, "match"))
        if "by" in known:
            known["by"] = self.by(known["by"], (*place, "by"))
        if isinstance(known.get("cost"), Mapping):
            known["cost"] = self.call(known["cost"], (*place, "cost"))
        limits = known.get("limits")
        if isinstance(limits, Mapping) and "call" in limits:
            known["limits"] = self.computed(limits, (*place, "limits"))
        needed = {"name": f"unreadable-{place[1]}", "limits": "unlimited"}
        try:
            rule = Rule(**{**needed, **known})
        except PolicyError as error:
            self._told(place, error)
            self._break(place, *(str(problem.place[0]) for problem in error.problems))
            rule = Rule(**{**needed, **_readable(known, error)})
        return (
            rule if len(self.problems.found) == before else replace(rule, final=False)
        )  # no other is unreachable for it

    def match(self, value: Any, place: Place) -> Match:
        if isinstance(value, Match):
            return value
        known = self.mapping(value, place, "match")
        headers = known.get("headers")
        if isinstance(headers, Mapping):
            known["headers"] = {name: _as_text(one) for name, one in headers.items()}
        before = len(self.problems.found)
        if known and not any(one or one is False for one in known.values()):
            self.problems.add(place, "matches nothing: leave it out to match every request")
        try:
            match = Match(**known)
        except PolicyError as error:
            self._told(place, error)
            match = Match(**_readable(known, error))
        if len(self.problems.found) > before or not isinstance(value, Mapping):
            self._break(place, "match")
        return match

    def override(self, value: Any, place: Place) -> Override:
        if isinstance(value, Override):
            return value
        known = self.mapping(value, place, "override")
        if "client" not in known and isinstance(value, Mapping):
            self.problems.add(place, "an override needs a client: an address, a range, or an identity like 'user:42'")
        elif isinstance(value, Mapping):
            try:
                return Override(**known)
            except PolicyError as error:
                self._told(place, error)
                known = _readable(known, error)
        client = known.get("client", "192.0.2.1")
        if "tier" in known:
            return Override(client, tier=known["tier"])
        return Override(client, known.get("limits", "unlimited"), rules=known.get("rules", ()))

    def identities(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: read_source(one, ("identities", name), self._functions, self.problems) for name, one in value.items()
        }

    def by(self, value: Any, place: Place) -> Any:
        if isinstance(value, list):
            return [self.by(one, (*place, index)) for index, one in enumerate(value)]
        return self.call(value, place) if isinstance(value, Mapping) else value

    def computed(self, value: Any, place: Place) -> Computed:
        known = self.mapping(value, place, "computed")
        if "otherwise" not in known:
            self.problems.add(place, "limits that are called need 'otherwise': what holds when the function fails")
        return Computed(self.function(known.get("call"), (*place, "call")), known.get("otherwise", "unlimited"))

    def options(self, value: Any, kind: str) -> Any:
        if not isinstance(value, Mapping):
            return [value] if kind == "trusted" and isinstance(value, str) else value
        known = self.mapping(value, (kind,), kind)
        if isinstance(known.get("format"), Mapping):
            known["format"] = self.call(known["format"], (kind, "format"))
        if isinstance(known.get("jitter"), str) and re.fullmatch("[0-9]*[.][0-9]+", known["jitter"]):
            known["jitter"] = float(known["jitter"])
        if "proxies" in known:
            proxies = known.pop("proxies")
            known["trusted"] = [proxies] if isinstance(proxies, str) else proxies
        return known

    def call(self, value: Any, place: Place) -> Callable[..., Any]:
        known = self.mapping(value, place, "call")
        if value == {}:
            self.problems.add(place, "expected 'call' with a function")
        if not known:
            return find_nothing
        return self.function(known["call"], (*place, "call"))

    def function(self, name: Any, place: Place) -> Callable[..., Any]:
        with self.problems.at(*place):
            return find_function(name, self._functions)
        return find_nothing


def _readable(known: Mapping[str, Any], error: PolicyError) -> dict[str, Any]:
    """Return what is left when everything that is wrong is taken out. Of limits by tier the others stay."""
    left = dict(known)
    for problem in error.problems:
        key, *inner = problem.place or ("",)
        tiers = left.get(str(key)) if key in ("limits", "candidate") and inner else None
        if isinstance(tiers, Mapping) and inner[0] in tiers:
            left[str(key)] = {**tiers, inner[0]: "deny"}
        else:
            left.pop(str(key), None)
    return left


def _as_text(value: Any) -> Any:
    """A header's value is text, also where YAML reads a number."""
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
