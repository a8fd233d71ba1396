"""Where the policy of a gate comes from, for operators: its text without secrets, a dry run, and reading it again."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ratebound.admin.messages import CallError
from ratebound.policy.load.document import parse
from ratebound.policy.load.loader import ANY_FUNCTION, REFERENCE, read_policy
from ratebound.policy.load.url_text import FetchError
from ratebound.policy.model.policy import Policy
from ratebound.policy.problem import PolicyError
from ratebound.policy.runtime.policy_changes import described_changes
from ratebound.policy.runtime.policy_url import FollowedPolicy
from ratebound.storage.secrecy import hidden

SECRETS = ("storage", "salt")  # keys of a policy
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
    """The origin of a policy. `check` and `reload` may return something to await."""

    def describe(self) -> Any:
        """Return the PolicyOrigin."""

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

    @property
    def _file(self) -> FollowedPolicy | None:
        found: FollowedPolicy | None = self._gate._source.file
        return found

    def describe(self) -> PolicyOrigin:
        """Return the policy in force, for people."""
        file = self._file
        if file is None:
            return PolicyOrigin("given as an object", None, "", "", False)
        error = "" if file.error is None else str(file.error)
        return PolicyOrigin(str(file.path), without_secrets(file.text, file.format), file.format, error, True)

    def check(self, text: str | None, format: str | None) -> list[Any]:
        """Return what a new policy would change: the one in `text`, or the file or URL as it is now."""
        old: Policy = self._gate.policy
        if text is not None:
            return described(old, read_sent(text, format or "yaml", old))
        file = self._file
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
        self._gate.current()
        return described(old, file.policy)


def described(old: Policy, new: Policy) -> list[Any]:
    """Return what a new policy changes, as JSON has it; see `PolicyChange`."""
    return [change._asdict() for change in described_changes(old, new)]


def read_sent(text: str, format: str, old: Policy) -> Policy:
    """Return the policy in a text that somebody has sent. Nothing of this process leaks into it: no function is
    imported, and no variable of the environment is filled in. Where `storage` and `salt` name a variable, they count as
    unchanged. Raises PolicyError."""
    tree, _ = parse(text, format)
    names: dict[str, str] = {}
    kept: dict[str, Any] = {}
    for key in SECRETS:
        value = tree.get(key) if isinstance(tree, Mapping) else None
        found = [match[1] for match in REFERENCE.finditer(value) if match[1]] if isinstance(value, str) else []
        if found:
            names.update(dict.fromkeys(found, STAND_INS[key]))
            kept[key] = getattr(old, key)
    policy = read_policy(text, format=format, functions=ANY_FUNCTION, environ=names)
    return replace(policy, **kept) if kept else policy


def without_secrets(text: str, format: str) -> str:
    """Return the text of a policy without its passwords: values of `storage` and `salt`, unless they name a variable.

    If one is not in the text as it is in the policy, because of escapes, the whole policy is written anew as JSON.
    """
    try:
        tree, _ = parse(text, format)
    except PolicyError:
        return ""  # it is in force, so that it can be read; but if it cannot, show nothing
    if not isinstance(tree, Mapping):
        return text
    shown: dict[str, str] = {}
    for key in SECRETS:
        value = tree.get(key)
        if isinstance(value, str) and value and REFERENCE.fullmatch(value) is None:
            shown[key] = hidden(value).strip("'\"") if key == "storage" else "…"
    for key, instead in shown.items():
        value = tree[key]
        if value == instead:
            continue
        if value not in text:
            return json.dumps({**tree, **shown}, indent=2, ensure_ascii=False, default=str)
        text = text.replace(value, instead)
    return text
