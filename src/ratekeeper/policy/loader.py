"""From a file to a policy. Every mistake is told, by file, line and place, before anything of it runs."""

import importlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratekeeper.policy.cost import graphql_cost, json_batch_cost
from ratekeeper.policy.documents import SUFFIXES, Lines, parse
from ratekeeper.policy.identify import Source
from ratekeeper.policy.match import Match
from ratekeeper.policy.policy import Override, Policy
from ratekeeper.policy.problem import Place, PolicyError, Problem, Problems, nearest, shown
from ratekeeper.policy.rule import Computed, Rule
from ratekeeper.policy.schema import KEYS

REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")
BUILT_IN = {"graphql": graphql_cost, "json-batch": json_batch_cost}  # functions that come with Ratekeeper

Functions = Mapping[str, Callable[..., Any]]


class _AnyFunction(dict[str, Callable[..., Any]]):
    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return _nothing


def _nothing(*arguments: Any) -> None:
    return None


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
        text = file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise PolicyError([Problem((), f"cannot read the policy: {error}")], str(path)) from None
    return read_policy(text, format=format, file=str(path), functions=functions, environ=environ)


def read_policy(
    text: str,
    *,
    format: str = "yaml",
    file: str = "",
    functions: Functions | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """Read the text of a policy. `file` is what its mistakes are told by."""
    try:
        tree, lines = parse(text, format)
    except PolicyError as error:
        raise PolicyError(error.problems, file) from None
    reading = _Reading({} if functions is None else functions, os.environ if environ is None else environ)
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


class _Reading:
    """Reads one tree of values. What cannot be read is noted, and left out, so that the rest is still looked at."""

    def __init__(self, functions: Functions, environ: Mapping[str, str]) -> None:
        self.problems = Problems()
        self._functions = functions
        self._environ = environ

    def policy(self, tree: Any) -> Policy | None:
        tree = self.filled(tree, ())
        known = self.mapping(tree, (), "policy")
        known.pop("$schema", None)
        switch = known.get("switch")
        if isinstance(switch, bool):
            known["switch"] = "on" if switch else "off"
        arguments: dict[str, Any] = {}
        origins: dict[str, list[int]] = {}
        for name, value in known.items():
            read = {"rules": self.rule, "exempt": self.match, "overrides": self.override}.get(name)
            if read is not None:
                arguments[name], origins[name] = self.each(value, name, read)
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
        broken = bool(self.problems.found)
        try:
            return Policy(**arguments)
        except PolicyError as error:
            for problem in error.problems:
                place = problem.place
                if broken and (place == ("rules",) or place[:1] == ("overrides",)):
                    continue  # may be true only because something else was left out
                if len(place) > 1 and place[0] in origins:
                    place = (place[0], origins[str(place[0])][int(place[1])], *place[2:])
                self.problems.add(place, problem.message)
        return None

    def filled(self, value: Any, place: Place) -> Any:
        """The tree with its references to the environment filled in."""
        if isinstance(value, dict):
            return {name: self.filled(one, (*place, name)) for name, one in value.items()}
        if isinstance(value, list):
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

    def each(self, value: Any, name: str, read: Callable[[Any, Place], Any]) -> tuple[list[Any], list[int]]:
        """What could be read of a list, and where in the list it stood."""
        if not isinstance(value, list):
            self.problems.add((name,), f"expected a list, not {shown(value)}")
            return [], []
        found, origins = [], []
        for index, one in enumerate(value):
            with self.problems.at(name, index):
                before = len(self.problems.found)
                made = read(one, (name, index))
                if len(self.problems.found) == before:
                    found.append(made)
                    origins.append(index)
        return found, origins

    def rule(self, value: Any, place: Place) -> Rule | None:
        known = self.mapping(value, place, "rule")
        if not isinstance(value, Mapping):
            return None
        for name in ("name", "limits"):
            if name not in known:
                self.problems.add(place, f"a rule needs {'a name' if name == 'name' else name}")
        if "match" in known:
            known["match"] = self.match(known["match"], (*place, "match"))
        if "by" in known:
            known["by"] = self.by(known["by"], (*place, "by"))
        if isinstance(known.get("cost"), Mapping):
            known["cost"] = self.call(known["cost"], (*place, "cost"))
        limits = known.get("limits")
        if isinstance(limits, Mapping) and "call" in limits:
            known["limits"] = self.computed(limits, (*place, "limits"))
        if "name" not in known or "limits" not in known:
            return None
        return Rule(**known)

    def match(self, value: Any, place: Place) -> Match:
        known = self.mapping(value, place, "match")
        headers = known.get("headers")
        if isinstance(headers, Mapping):
            known["headers"] = {name: _as_text(one) for name, one in headers.items()}
        if known and not any(one or one is False for one in known.values()):
            self.problems.add(place, "matches nothing: leave it out to match every request")
        before = len(self.problems.found)
        with self.problems.at(*place):
            return Match(**known)
        assert len(self.problems.found) > before
        return Match()

    def override(self, value: Any, place: Place) -> Override | None:
        known = self.mapping(value, place, "override")
        if "client" not in known and isinstance(value, Mapping):
            self.problems.add(place, "an override needs a client: an address, a range, or an identity like 'user:42'")
        return Override(**known) if "client" in known else None

    def identities(self, value: Any) -> dict[str, Source]:
        if not isinstance(value, Mapping):
            self.problems.add(("identities",), f"expected names of identities, not {shown(value)}")
            return {}
        found = {}
        for name, one in value.items():
            place: Place = ("identities", name)
            known = self.mapping(one, place, "identity")
            for key in ("verify", "call"):
                if key in known:
                    known[key] = self.function(known[key], (*place, key))
            for key, kind in (("header", str), ("cookie", str), ("tier", str), ("proxy", bool)):
                if key in known and not isinstance(known[key], kind):
                    what = "text" if kind is str else "true or false"
                    self.problems.add((*place, key), f"expected {what}, not {shown(known.pop(key))}")
            found[name] = Source(call=_nothing)  # so that rules that count by it are not told that it is unknown
            with self.problems.at(*place):
                found[name] = Source(**known)
        return found

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
        if not known:
            return _nothing  # it has been said what is there instead
        return self.function(known["call"], (*place, "call"))

    def function(self, name: Any, place: Place) -> Callable[..., Any]:
        """A function by the name it was handed over with, one of our own, or one that is imported."""
        if not isinstance(name, str):
            self.problems.add(place, f"expected the name of a function, not {shown(name)}")
            return _nothing
        if name in self._functions:
            return self._functions[name]
        if name in BUILT_IN:
            return BUILT_IN[name]
        if ":" not in name:
            known = [*self._functions, *BUILT_IN]
            hint = nearest(name, known)
            self.problems.add(place, f"unknown function {name!r}: {hint}; or write it as package.module:function")
            return _nothing
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # an import runs the user's code: it may fail in any way
            self.problems.add(place, f"cannot import {name!r}: {type(error).__name__}: {error}")
            return _nothing
        if not callable(found):
            self.problems.add(place, f"{name!r} is not a function")
            return _nothing
        return found  # type: ignore[no-any-return]


def _as_text(value: Any) -> Any:
    """A header's value is text, also where YAML reads a number."""
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
