"""The dashboard as URLs of a Django site: `path("limits/", dashboard(auth=staff_operator))`.

The page asks for figures every two seconds. There are no events here, because Django closes streams in its own ways.
"""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.urls import URLPattern, path

from ratebound.admin.messages import AdminRequest
from ratebound.flow import run
from ratebound.policy.functions import check_takes
from ratebound.web.body import django_body
from ratebound.web.dashboard import Auth, DashboardLedger, needing_auth
from ratebound.web.dashboard import Operator as Operator
from ratebound.web.django.calling import at_once
from ratebound.web.django.configuration import BODY_ERRORS, DASHBOARDS, configured_limits
from ratebound.web.django.request import visit_of

NAME = "ratebound"


@needing_auth
def dashboard(*, auth: Auth[[Any]], ledger: DashboardLedger | None = None) -> tuple[list[URLPattern], str, str]:
    """Return the URLs of the dashboard, for `path`. Requests for the dashboard are not limited.

    What `auth` raises is for Django: PermissionDenied, for example.

    Args:
        auth: A function of the HttpRequest, which may be async. It returns None, `"read"`, `"write"`, or an `Operator`.
        ledger: A `Ledger` whose history the dashboard shows, too.

    Raises:
        TypeError: `auth` takes other arguments.

    Examples:
        >>> from django.urls import path
        >>> from ratebound.web.django import dashboard, staff_operator
        >>> urlpatterns = [path("limits/", dashboard(auth=staff_operator))]
    """
    check_takes(auth, "the HttpRequest", option="auth")

    def find_operator(request: Any) -> Any:
        return at_once(auth, request)

    def dashboard_view(request: Any, dashboard_path: str, **_: Any) -> Any:
        return _answer(request, dashboard_path, find_operator, ledger)

    # Django's token would have to be in the page. The dashboard demands a header that no other site can send, and a
    # request from its own origin.
    dashboard_view.csrf_exempt = True  # type: ignore[attr-defined]
    DASHBOARDS.add(dashboard_view)
    page = path("", dashboard_view, {"dashboard_path": ""}, name="dashboard")
    urls = [page, path("<path:dashboard_path>", dashboard_view)]
    return urls, NAME, NAME


def staff_operator(request: Any) -> Operator | None:
    """Return staff of Django's admin as operators: superusers may change everything, others only look. Others are None.

    It is an `auth` for `dashboard`.

    Args:
        request: The HttpRequest.

    Raises:
        ImproperlyConfigured: The site has no AuthenticationMiddleware.

    Examples:
        >>> from django.urls import path
        >>> from ratebound.web.django import dashboard, staff_operator
        >>> urlpatterns = [path("limits/", dashboard(auth=staff_operator))]
    """
    user = getattr(request, "user", None)
    if user is None:
        raise ImproperlyConfigured(
            "staff_operator needs request.user: put AuthenticationMiddleware into MIDDLEWARE, or give dashboard()"
            " another auth"
        )
    if not getattr(user, "is_active", False) or not getattr(user, "is_staff", False):
        return None
    return Operator(user.get_username(), "write" if getattr(user, "is_superuser", False) else "read")


def _answer(request: Any, path: str, auth: Callable[[Any], Any], ledger: Any) -> Any:
    """Return the response to a request for the dashboard."""
    visit_of(request).is_late = True  # nothing is left to check
    below = path.removeprefix("/")
    mount = request.path[: len(request.path) - len(path)]
    asked = AdminRequest(
        method=request.method,
        path=None if not path and not mount.endswith("/") else below,
        query=request.META.get("QUERY_STRING", ""),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=django_body(request, BODY_ERRORS),
        mount=mount.rstrip("/"),
        is_secure=request.is_secure(),
        peer=request.META.get("REMOTE_ADDR") or "",
        native=request,
    )
    answer = run(configured_limits().dashboard_site(auth, ledger).answer(asked))
    response = HttpResponse(answer.body, status=answer.status)
    for name, value in answer.headers:
        response.headers[name] = value
    return response
