"""Reading of policy files. Every error is reported with its file, line and place before any part of the policy runs."""

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
from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import Computed, Rule
from ratebound.policy.problem import Place, PolicyError, Problem, Problems, nearest, shown
from ratebound.policy.schema import KEYS

T = TypeVar("T")

USER_CONDITIONS = {"user", "users", "anonymous", "authenticated"}
BY_TIER = (
    "no condition tells users from anonymous clients: write limits by tier, as"
    " limits: {member: 20/minute, default: 5/minute}"
)
REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{[^}]*\}?")


class _AnyFunction(dict[str, Callable[..., Any]]):
    """A mapping that has a function for every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return find_nothing


ANY_FUNCTION: Functions = _AnyFunction()
"""Has a function for every name, for tools that only look at a file. Each of these functions returns None."""


def load_policy(
    path: str | os.PathLike[str],
    *,
    functions: Functions | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    r"""Return the policy in a file.

    Args:
        path: A .yaml, .json or .toml file.
        functions: The functions that the policy calls by name.
        environ: The variables that fill in `${NAME}`. None means `os.environ`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from pathlib import Path
        >>> from ratebound.policy import load_policy
        >>> _ = Path("policy.toml").write_text('[[rules]]\nname = "api"\nlimits = "100/minute"\n')
        >>> [rule.name for rule in load_policy("policy.toml").rules]
        ['api']
    """
    text, format = policy_text(path)
    return read_policy(text, format=format, file=str(path), functions=functions, environ=environ)


def policy_text(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the text of a policy file, and its format. Raises PolicyError if it cannot be read."""
    format = SUFFIXES.get(Path(path).suffix.lower())
    try:
        if format is None:
            raise ValueError("expected a file name that ends in .yaml, .yml, .json or .toml")
        return _text_of(path), format
    except (OSError, ValueError) as error:
        raise PolicyError([Problem((), f"cannot read the policy: {error}")], str(path)) from None


def _text_of(path: str | os.PathLike[str]) -> str:
    """Return the text of a regular file. Does not block: opening a FIFO waits for a writer."""
    flags = getattr(os, "O_NONBLOCK", 0)
    with open(path, encoding="utf-8", opener=lambda name, plain: os.open(name, plain | flags)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("expected a regular file, not a directory, a FIFO or a device")
        return opened.read()


def read_policy(
    given: str | Mapping[str, Any],
    *,
    format: str = "yaml",
    file: str = "",
    functions: Functions | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """Return the policy in a text, or in a mapping with the keys of a file, in which functions may be given as objects.

    Args:
        given: The text, or the mapping.
        format: 'yaml', 'json' or 'toml'.
        file: The name in messages.
        functions: The functions that the policy calls by name.
        environ: The variables that fill in `${NAME}`. None means `os.environ`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import read_policy
        >>> policy = read_policy({"rules": [{"name": "api", "limits": "100/minute"}]})
        >>> [rule.name for rule in policy.rules]
        ['api']
    """
    lines: Lines = {}
    tree: Any = given
    if not isinstance(given, Mapping):
        try:
            tree, lines = parse(given, format)
        except PolicyError as error:
            raise PolicyError(error.problems, file) from None
    reader = _PolicyReader({} if functions is None else functions, os.environ if environ is None else environ)
    try:
        policy = reader.policy(tree)
    except RecursionError:
        raise PolicyError([Problem((), "cannot read the policy: it is nested too deep")], file) from None
    if policy is None or reader.problems.found:
        found = [problem._replace(line=_line(problem.place, lines)) for problem in reader.problems.found]
        raise PolicyError(sorted(dict.fromkeys(found), key=lambda problem: problem.line or 0), file)
    return policy


def _line(place: Place, lines: Lines) -> int | None:
    """Return the line of a place, or of the innermost value around it that has a line."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)


class _PolicyReader:
    """A reader of one tree of values. It notes each part that cannot be read and goes on with the rest, so that all
    other errors are found, but no errors that only follow from the first."""

    def __init__(self, functions: Functions, environ: Mapping[str, str]) -> None:
        self.problems = Problems()
        self._functions = functions
        self._environ = environ
        self._has_rules = False
        self._broken: dict[Place, set[str]] = {}  # rules and exemptions by place, with their keys that cannot be read

    def policy(self, tree: Any) -> Policy | None:
        """Return the policy, None if there is none. It is whole only if `problems` has found nothing."""
        if tree is None or tree == {}:
            self.problems.add((), "the policy is empty: add 'rules'")
            return None
        tree = self.fill_references(tree, ())
        unset = [*self.problems.found]
        known = self.mapping(tree, (), "policy")
        known.pop("$schema", None)
        self._has_rules = isinstance(known.get("rules"), list)
        switch = known.get("switch")
        if isinstance(switch, bool):
            known["switch"] = "on" if switch else "off"
        readers: dict[str, Callable[[Any, Place], Any]] = {
            "rules": self.rule,
            "exempt": self.match,
            "overrides": self.override,
            "descriptors": self.descriptor,
        }
        arguments: dict[str, Any] = {}
        for name, value in known.items():
            read = readers.get(name)
            if read is not None:
                arguments[name] = self.each(value, name, read)
            elif name == "identities":
                arguments[name] = self.identities(value)
            elif name == "by":
                arguments[name] = self.by(value, (name,))
            elif name in ("headers", "rejection", "trusted"):
                arguments[name] = self.options(value, name)
            elif name in ("allow", "block", "tiers") and isinstance(value, str):
                arguments[name] = [value]
            elif value is not None:
                arguments[name] = value
        policy = None
        try:
            policy = Policy(**arguments)
        except PolicyError as error:
            self.problems.found += [problem for problem in error.problems if not self._is_consequence(problem.place)]
        places = [problem.place for problem in unset]
        self.problems.found[len(unset) :] = [
            problem
            for problem in self.problems.found[len(unset) :]
            if not any(problem.place[: len(place)] == place for place in places)
        ]
        return policy

    def _is_consequence(self, place: Place) -> bool:
        """Return True if the problem at this place may only be a consequence of another part that cannot be read."""
        if place == ("rules",):
            return any(len(problem.place) < 2 for problem in self.problems.found)
        broken = self._broken.get(place[:2], set())
        if place[0] == "rules" and len(place) == 2:  # the problem of a rule that is never reached
            return bool(broken & {"", "match", "stage"})
        if place[0] == "exempt":
            return bool(broken)
        if place[0] == "descriptors" and "replaces" in place:
            return any("name" in keys for keys in self._broken.values())
        if place[0] == "overrides" and "rules" in place[2:]:
            return not self._has_rules or any("name" in keys for keys in self._broken.values())
        return False

    def fill_references(self, value: Any, place: Place) -> Any:
        """Return the tree with its references to the environment, `${NAME}`, replaced by their values."""
        if isinstance(value, Mapping):
            return {name: self.fill_references(one, (*place, name)) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill_references(one, (*place, index)) for index, one in enumerate(value)]
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
                place, f"cannot read {found.group()!r}: expected ${{NAME}} or ${{NAME:-default}}; write $$ for a $"
            )
            return ""
        value = self._environ.get(name) or default  # as in a shell, ':-' replaces an empty value too
        if value is None:
            self.problems.add(place, f"{name} is not set in the environment: set it, or write ${{{name}:-default}}")
            return "unset"
        return value

    def mapping(self, value: Any, place: Place, kind: str) -> dict[str, Any]:
        """Return a mapping of this kind without unknown keys, and add a problem for each of these."""
        if not isinstance(value, Mapping):
            self.problems.add(place, f"expected a mapping of keys to values, not {shown(value)}")
            return {}
        for name in value:
            if name not in KEYS[kind]:
                hint = BY_TIER if kind == "match" and name in USER_CONDITIONS else nearest(name, KEYS[kind])
                self.problems.add((*place, str(name)), f"unknown key {shown(name)}: {hint}")
        return {name: one for name, one in value.items() if name in KEYS[kind]}

    def each(self, value: Any, name: str, read: Callable[[Any, Place], T]) -> list[T]:
        """Return the entries of a list, each read by `read`."""
        if not isinstance(value, list):
            self.problems.add((name,), f"expected a list, not {shown(value)}")
            return []
        return [read(one, (name, index)) for index, one in enumerate(value)]

    def _mark_broken(self, place: Place, *keys: str) -> None:
        self._broken.setdefault(place[:2], set()).update(keys)

    def _add_problems(self, place: Place, error: PolicyError) -> None:
        with self.problems.at(*place):
            raise error

    def rule(self, value: Any, place: Place) -> Rule:
        """Return a rule; of a rule with errors, the parts that can be read."""
        if isinstance(value, Rule):
            return value
        before = len(self.problems.found)
        known = self.mapping(value, place, "rule")
        if not isinstance(value, Mapping):
            self._mark_broken(place, "")
        for name in ("name", "limits"):
            if name not in known and isinstance(value, Mapping):
                self.problems.add(place, f"a rule needs {'a name' if name == 'name' else name}")
                self._mark_broken(place, name)
        if "match" in known:
            known["match"] = self.match(known["match"], (*place, "match"))
        if "by" in known:
            known["by"] = self.by(known["by"], (*place, "by"))
        if isinstance(known.get("cost"), Mapping):
            known["cost"] = self.call(known["cost"], (*place, "cost"))
        charge = known.get("charge")
        if isinstance(charge, Mapping) and "call" in charge:
            known["charge"] = self.call(charge, (*place, "charge"))
        if isinstance(known.get("distinct"), Mapping):
            known["distinct"] = {
                name: self.call(one, (*place, "distinct", str(name))) if isinstance(one, Mapping) else one
                for name, one in known["distinct"].items()
            }
        limits = known.get("limits")
        if isinstance(limits, Mapping) and "call" in limits:
            known["limits"] = self.computed(limits, (*place, "limits"))
        needed = {"name": f"unreadable-{place[1]}", "limits": "unlimited"}
        try:
            rule = Rule(**{**needed, **known})
        except PolicyError as error:
            self._add_problems(place, error)
            self._mark_broken(place, *(str(problem.place[0]) for problem in error.problems))
            rule = Rule(**{**needed, **_readable(known, error)})
        # A rule with errors is not final: what it hides from later rules is not known.
        return rule if len(self.problems.found) == before else replace(rule, final=False)

    def descriptor(self, value: Any, place: Place) -> DescriptorRule:
        """Return a rule for descriptors; of a rule with errors, the parts that can be read."""
        if isinstance(value, DescriptorRule):
            return value
        known = self.mapping(value, place, "descriptor")
        for name in ("name", "domain", "entries", "limits"):
            if name not in known and isinstance(value, Mapping):
                self.problems.add(place, f"a rule for descriptors needs {name}")
                self._mark_broken(place, name)
        needed = {
            "name": f"unreadable-{place[1]}",
            "domain": "unreadable",
            "entries": [f"unreadable-{place[1]}"],
            "limits": "unlimited",
        }
        try:
            return DescriptorRule(**{**needed, **known})
        except PolicyError as error:
            self._add_problems(place, error)
            self._mark_broken(place, *(str(problem.place[0]) for problem in error.problems if problem.place))
            return DescriptorRule(**{**needed, **_readable(known, error)})

    def match(self, value: Any, place: Place) -> Match:
        """Return a match; of a match with errors, the conditions that can be read."""
        if isinstance(value, Match):
            return value
        known = self.mapping(value, place, "match")
        headers = known.get("headers")
        if isinstance(headers, Mapping):
            known["headers"] = {name: _as_text(one) for name, one in headers.items()}
        before = len(self.problems.found)
        if known and not any(one or one is False for one in known.values()):
            self.problems.add(place, "every condition is empty: add values, or leave it out to match every request")
        try:
            match = Match(**known)
        except PolicyError as error:
            self._add_problems(place, error)
            match = Match(**_readable(known, error))
        if len(self.problems.found) > before or not isinstance(value, Mapping):
            self._mark_broken(place, "match")
        return match

    def override(self, value: Any, place: Place) -> Override:
        """Return an override; of an override with errors, the parts that can be read."""
        if isinstance(value, Override):
            return value
        known = self.mapping(value, place, "override")
        if "client" not in known and isinstance(value, Mapping):
            self.problems.add(place, "an override needs a client: an address, a range, or an identity like 'user:42'")
        elif isinstance(value, Mapping):
            try:
                return Override(**known)
            except PolicyError as error:
                self._add_problems(place, error)
                known = _readable(known, error)
        client = known.get("client", "192.0.2.1")
        if "tier" in known:
            return Override(client, tier=known["tier"])
        return Override(client, known.get("limits", "unlimited"), rules=known.get("rules", ()))

    def identities(self, value: Any) -> Any:
        """Return the sources of identities by name."""
        if not isinstance(value, Mapping):
            return value
        return {
            name: read_source(one, ("identities", name), self._functions, self.problems) for name, one in value.items()
        }

    def by(self, value: Any, place: Place) -> Any:
        """Return a `by` with each `{call: …}` replaced by its function."""
        if isinstance(value, list):
            return [self.by(one, (*place, index)) for index, one in enumerate(value)]
        return self.call(value, place) if isinstance(value, Mapping) else value

    def computed(self, value: Any, place: Place) -> Computed:
        """Return the limits of a `{call: …, otherwise: …}`."""
        known = self.mapping(value, place, "computed")
        if "otherwise" not in known:
            self.problems.add(place, "limits with 'call' need 'otherwise': the limits that apply if the function fails")
        return Computed(self.function(known.get("call"), (*place, "call")), known.get("otherwise", "unlimited"))

    def options(self, value: Any, kind: str) -> Any:
        """Return the value of `headers`, `rejection` or `trusted` as Policy takes it."""
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
        """Return the function of a `{call: …}`."""
        known = self.mapping(value, place, "call")
        if value == {}:
            self.problems.add(place, "expected 'call' with the name of a function")
        if not known:
            return find_nothing
        return self.function(known["call"], (*place, "call"))

    def function(self, name: Any, place: Place) -> Callable[..., Any]:
        """Return the function of that name; find_nothing, and a problem, if there is none."""
        with self.problems.at(*place):
            return find_function(name, self._functions)
        return find_nothing


def _readable(known: Mapping[str, Any], error: PolicyError) -> dict[str, Any]:
    """Return the keys without those that have an error. Of limits by tier, only tiers with an error are replaced."""
    left = dict(known)
    wrong = {str(problem.place[0]) for problem in error.problems if problem.place}
    if wrong & {"limits", "candidate", "distinct"}:
        left.pop("penalty", None)  # what is left may have nothing that strikes
        left.pop("strike", None)
        if left.pop("distinct", None) is not None:  # limits and sources are readable only together
            for option in ("limits", "candidate", "retry", "warn", "slice", "deny_cache"):
                left.pop(option, None)
    if "penalty" in wrong:
        left.pop("strike", None)
    for problem in error.problems:
        key, *inner = problem.place or ("",)
        if key in ("limits", "candidate"):
            # Each of these may belong to a limit that cannot be read.
            for option in ("retry", "warn", "strike", "slice", "deny_cache"):
                left.pop(option, None)
        tiers = left.get(str(key)) if key in ("limits", "candidate") and inner else None
        if isinstance(tiers, Mapping) and inner[0] in tiers:
            left[str(key)] = {**tiers, inner[0]: "deny"}
        else:
            left.pop(str(key), None)
    return left


def _as_text(value: Any) -> Any:
    """Return a header's value as a string: YAML reads `1` as a number."""
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
