"""Failed logins, from Django's signals: a wrong password is answered with the form again and status 200, and
`charge="failure"` has to count it anyway."""

from contextvars import ContextVar
from typing import Any
from weakref import ref

from django.contrib.auth.signals import user_logged_in, user_login_failed

from ratebound.web.django.request import VISIT
from ratebound.web.visit import Visit

# The request that is being answered, where its result decides about its cost: `authenticate` may be called without it.
_answered: ContextVar["ref[Any] | None"] = ContextVar("ratebound_answered", default=None)


def remember(request: Any) -> None:
    """Note the request that this thread or task answers. It is held weakly, so nobody has to reset it."""
    _answered.set(ref(request))


def _failed(sender: Any, request: Any = None, **_: Any) -> None:
    _mark(request, failed=True)


def _logged_in(sender: Any, request: Any = None, **_: Any) -> None:
    _mark(request, failed=False)


def _mark(request: Any, *, failed: bool) -> None:
    """Note how a login went. One that failed outweighs those that did not: a request may try many passwords."""
    if request is None:
        known = _answered.get()
        request = None if known is None else known()
    visit: Visit | None = getattr(getattr(request, "_request", request), VISIT, None)
    if visit is None:
        return
    passed = visit.passed
    if passed is None:
        visit.failed = visit.failed or failed
    elif not passed.failed:
        passed.failed = failed


user_login_failed.connect(_failed, dispatch_uid="ratebound")
user_logged_in.connect(_logged_in, dispatch_uid="ratebound")
