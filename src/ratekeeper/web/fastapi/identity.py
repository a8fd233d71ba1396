"""Who a user is, of whatever an application has for one."""

from typing import Any
from uuid import UUID

from ratekeeper.policy import Identity

NAMES = ("identity", "id", "pk", "username", "sub", "display_name")


def user_from(user: Any) -> str | int | Identity | None:
    """A user that an application has found. One of whom it cannot be told who that is raises: to count by something
    else would be a quota that everybody shares, or nobody."""
    if user is None or (isinstance(user, str | int | Identity) and not isinstance(user, bool)):
        return user
    if getattr(user, "is_authenticated", True) is False:
        return None
    for name in NAMES:
        try:
            value = user.get(name) if isinstance(user, dict) else getattr(user, name, None)
        except NotImplementedError:
            continue  # Starlette's users need not have an identity
        if isinstance(value, UUID):
            return str(value)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return value
    raise TypeError(
        f"cannot tell who the user is, of {type(user).__qualname__}: expected text, a number, an Identity, or an object"
        f" with one of {', '.join(NAMES)}"
    )
