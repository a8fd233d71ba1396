"""The stable id of a user, from any object that a framework or an application has for one; and rules that count by user
where no user can be known. One function for all adapters, so that a user is the same in each."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from ratebound.policy import Identity, Policy
from ratebound.policy.functions import check_takes, is_async, unwrapped
from ratebound.policy.identity.identify import MAX_BITS, id_text
from ratebound.policy.problem import shown

log = logging.getLogger("ratebound")

NAMES = ("identity", "pk", "id", "username", "sub", "display_name")  # attributes or items, in this order
STABLE = ("pk", "id")  # where one of these is there, nothing else is the id

User = str | int | Identity | None


def user_id(user: Any) -> User:
    """Return the stable id of a user, None if nobody is authenticated.

    A user is text, a whole number, a UUID, an Identity, a mapping or an object with one of NAMES, or a lazy proxy of
    one of these. Raises TypeError if it has no stable id: any other value would be a quota that everybody shares, or
    nobody.
    """
    user = unwrapped(user)
    if user is None or user is False:
        return None
    found = _plain(user)
    if found is not None:
        return found or None if isinstance(found, str) else found
    if not _part(user, "is_authenticated", True):
        return None
    for name in NAMES:
        try:
            value = unwrapped(_part(user, name, None))
        except NotImplementedError:
            continue  # Starlette's users need not have an identity
        found = _plain(value)
        if found not in (None, ""):
            return found
        if name in STABLE and found is None and value is not None:  # a name instead may be another's tomorrow
            raise TypeError(
                f"cannot tell who the user is from {type(user).__qualname__}: its {name} is"
                f" {type(value).__qualname__}: expected text, a whole number or a UUID; write user=, a function"
                f" that returns for example str(user.{name})"
            )
    of_value = f" with the value {shown(user.value)}" if isinstance(user, Identity) else ""
    raise TypeError(
        f"cannot tell who the user is from {type(user).__qualname__}{of_value}: expected text, a whole number of up to"
        f" {MAX_BITS} bits, a UUID, an Identity of one of these, or a mapping or an object with one of"
        f" {', '.join(NAMES)}"
    )


def _part(user: Any, name: str, missing: Any) -> Any:
    return user.get(name, missing) if isinstance(user, Mapping) else getattr(user, name, missing)


def _plain(value: Any) -> User:
    if isinstance(value, Identity):
        return value if id_text(value.value) else None
    text = id_text(value)
    return text if text is None or isinstance(value, UUID) else value


def found_user_id(user: Any) -> User:
    """Return `user_id` of a user that some middleware has found. One without a stable id is logged once, and is None:
    the application did not hand this user to the limits."""
    try:
        return user_id(user)
    except TypeError as error:
        _log_once(str(error))
        return None


def check_user(user: Any) -> None:
    """Raise TypeError unless `user` is a function. A proxy of a user can be called, but is none."""
    if not callable(unwrapped(user)):
        raise TypeError(f"expected a function as user=, not {user!r}: one that returns who is authenticated, or None")


def identified(user: Callable[..., Any], argument: str) -> Callable[..., User]:
    """Return a function that calls the application's `user`, and returns the user's id. `argument` is what `user` is
    called with. Raises TypeError if `user` is no function, needs more arguments, or has to be awaited."""
    check_user(user)
    check_takes(user, argument, option="user")
    if is_async(user):
        raise TypeError(
            f"user={user!r} cannot be awaited here: find the user in an authentication middleware around the limits,"
            " and let user= read what it has found"
        )

    @functools.wraps(user)
    def called(source: Any) -> User:
        return user_id(user(source))

    return called


def user_is_given(_: Any) -> str:
    """Return "": where the application itself names the user, a request without one is anonymous."""
    return ""


@functools.lru_cache(maxsize=64)
def _log_once(message: str) -> None:
    log.error("%s. Requests of this user count by address", message)


def names_user(by: Any) -> bool:
    """Return True if `by` is text that counts by user: 'user', or 'user + address'."""
    return isinstance(by, str) and "user" in [name.strip() for name in by.split("+")]


def counts_by_user_alone(by: Any) -> bool:
    """Return True if `by` names nothing to count by but the user: then an anonymous client counts by address, though
    nobody wrote so. `["user", "address"]` says it, and `"user + address"` does not."""
    listed = list(by) if isinstance(by, Iterable) and not isinstance(by, str) else [by]
    return all(names_user(one) for one in listed)


def rules_by_user_alone(policy: Policy) -> frozenset[str]:
    """Return the names of the rules that count by user alone. Where the policy says itself who a user is, by an
    identity `user`, adapters need not know."""
    if "user" in policy.identities:
        return frozenset()
    return frozenset(
        rule.name
        for rule in policy.rules
        if rule.stage == "late" and counts_by_user_alone(policy.by if rule.by is None else rule.by)
    )
