"""Where the policy of a gate comes from, for operators: its text without secrets, a dry run, and reading it again."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ratebound.admin.messages import CallError
from ratebound.policy.functions import find_function, find_nothing
from ratebound.policy.load.document import parse
from ratebound.policy.load.loader import ANY_FUNCTION, REFERENCE, read_policy
from ratebound.policy.load.url_text import FetchError
from ratebound.policy.model.policy import Policy
from ratebound.policy.problem import PolicyError
from ratebound.policy.runtime.policy_changes import NOT_SHOWN, described_changes, is_secret_header
from ratebound.policy.runtime.policy_url import FollowedPolicy
from ratebound.storage.secrecy import hidden

SECRETS = ("storage", "salt")  # keys of a policy
SHORT = 8  # characters: such a secret may be part of other words
PASSWORD = re.compile(r"://[^/\s@\"']*@")
STAND_INS = {"storage": "memory://", "salt": "a secret"}
AN_OBJECT = "This policy was given as an object, so it cannot be read again: change it where the program makes it."


class PolicyOrigin(NamedTuple):
    """The policy in force, for people. `source` is its file or URL, `text` its text, without secrets; None if it was
    given as an object. `error` says what is wrong with the file as it is now, "" if it is in force."""

    source: str
    text: str | None
    format: str
    error: str
    can_reload: bool


class PolicySource(Protocol):
    """The origin of a policy. Each method may be async. If it is not, an AsyncGate has it run in a thread."""

    def describe(self) -> Any:
        """Return the PolicyOrigin."""

    def revision(self) -> Any:
        """Return a text that changes with the policy in force, and with the error of the PolicyOrigin. Asked often."""

    def check(self, text: str | None, format: str | None) -> Any:
        """Return what a new policy would change, a list. Without a text, read the file or the URL again.

        Raises PolicyError with everything that is wrong with it, and CallError if there is nothing to read.
        """

    def reload(self) -> Any:
        """Read the policy again, put it in force, and return what has changed, a list. Raises like `check`."""


class GatePolicySource:
    """The origin of the policy of a gate in this process: a PolicyFile, a PolicyUrl, or an object."""

    def __init__(self, gate: Any) -> None:
        self._gate = gate
        self._shown = "", ("", "")  # the last text, and what is shown of it: reading a long one takes seconds

    @property
    def _file(self) -> FollowedPolicy | None:
        found: FollowedPolicy | None = self._gate._source.file
        return found

    def describe(self) -> PolicyOrigin:
        """Return the policy in force, for people."""
        file = self._file
        if file is None:
            return PolicyOrigin("given in the program", None, "", "", False)
        text = file.text
        if self._shown[0] != text:
            self._shown = text, without_secrets(text, file.format)
        return PolicyOrigin(str(file.path), *self._shown[1], _error(file), True)

    def revision(self) -> str:
        """Return a text that changes with the policy, and with what is wrong with it."""
        file = self._file
        return "" if file is None else f"{file.text}\0{_error(file)}"

    def check(self, text: str | None, format: str | None) -> list[Any]:
        """Return what a new policy would change: the one in `text`, or the file or URL as it is now."""
        old: Policy = self._gate.policy
        file = self._file
        if text is not None:
            known = ANY_FUNCTION
            if file is not None:
                known = _KnownFunctions(file.text, file.format, file.functions)
            return described(old, read_sent(text, format or "yaml", old, known))
        if file is None:
            raise CallError(409, AN_OBJECT)
        try:
            return described(old, file.read())
        except FetchError as error:
            raise CallError(502, str(error)) from None

    def reload(self) -> list[Any]:
        """Read the file again, put it in force, and return what has changed."""
        file = self._file
        if file is None:
            raise CallError(409, AN_OBJECT)
        old: Policy = self._gate.policy
        if not file.reload():
            if isinstance(file.error, PolicyError):
                raise file.error
            raise CallError(502, str(file.error))
        return described(old, file.policy)


def _error(file: FollowedPolicy) -> str:
    return "" if file.error is None else str(file.error)


def described(old: Policy, new: Policy) -> list[Any]:
    """Return what a new policy changes, as JSON has it; see `PolicyChange`."""
    return [change._asdict() for change in described_changes(old, new)]


class _KnownFunctions(dict[str, Callable[..., Any]]):
    """The functions that a policy in force names. Every other name stands for a function that finds nothing."""

    def __init__(self, text: str, format: str, functions: Mapping[str, Callable[..., Any]] | None) -> None:
        self._known = {*_strings(parse(text, format)[0])}
        self._functions = functions or {}

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        return find_function(name, self._functions) if name in self._known else find_nothing


def read_sent(
    text: str, format: str, old: Policy, functions: Mapping[str, Callable[..., Any]] = ANY_FUNCTION
) -> Policy:
    """Return the policy in a text that somebody has sent. Nothing of this process leaks into it: it imports nothing,
    and no variable of the environment is filled in. Where `storage` or `salt` name a variable, they count as unchanged.

    `functions` has a function for every name. Raises PolicyError.
    """
    tree, _ = parse(text, format)
    names: dict[str, str] = {}
    kept: dict[str, Any] = {}
    for key in SECRETS:
        value = tree.get(key) if isinstance(tree, Mapping) else None
        found = [match[1] for match in REFERENCE.finditer(value) if match[1]] if isinstance(value, str) else []
        if found:
            names.update(dict.fromkeys(found, STAND_INS[key]))
            kept[key] = getattr(old, key)
    policy = read_policy(text, format=format, functions=functions, environ=names)
    return replace(policy, **kept) if kept else policy


def without_secrets(text: str, format: str) -> tuple[str, str]:
    """Return the text of a policy, and its format, without secrets: `storage` and `salt`, unless they name a variable,
    values of headers like Authorization, and passwords in URLs.

    If a secret cannot be found in the text with certainty, because it is short or has escapes, the whole policy is
    written anew as JSON.
    """
    try:
        tree, _ = parse(text, format)
    except PolicyError:
        return "", format  # it is in force, so it can be read; but if it cannot, show nothing
    secrets: dict[str, str] = {}
    shown = _shown_tree(tree, (), secrets)
    if any(len(value) < SHORT or value not in text for value in secrets):
        text, format = json.dumps(shown, indent=2, ensure_ascii=False, default=str), "json"
    for value, instead in secrets.items():
        if len(value) >= SHORT:  # a gap in another word would tell a short one
            text = text.replace(value, instead)
    return PASSWORD.sub("://…@", text), format


def _shown_tree(value: Any, place: tuple[Any, ...], secrets: dict[str, str]) -> Any:
    """Return a tree without its secrets, and collect them with what is shown instead."""
    if isinstance(value, Mapping):
        return {name: _shown_tree(one, (*place, name), secrets) for name, one in value.items()}
    if isinstance(value, list):
        return [_shown_tree(one, place, secrets) for one in value]
    if value is None or value == "":
        return value
    text = str(value)  # a number can be a secret, too
    named = REFERENCE.fullmatch(text)
    if named is not None and named[2] is None:  # a variable without a value to use in its place
        return value
    instead = text
    if place == ("storage",):
        instead = hidden(text)[1:-1]
    elif place == ("salt",) or (len(place) > 2 and place[-2] == "headers" and is_secret_header(str(place[-1]))):
        instead = NOT_SHOWN
    if instead == text:
        return value
    secrets[text] = instead
    return instead


def _strings(value: Any) -> Iterator[str]:
    for one in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(one, str):
            yield one
        else:
            yield from _strings(one)
