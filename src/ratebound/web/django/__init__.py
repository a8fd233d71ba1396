"""Django: RateLimitMiddleware, `@limit("5/minute")` on views, and RATEBOUND in the settings.

Early rules are checked when a request comes in, all others before its view, where the route and the user are known;
for a request that reaches no view, when its response leaves. Under ASGI only functions of the application that may
block leave the event loop.
"""

from ratebound.from_extra import from_extra

with from_extra("django", django="Django", asgiref="Django"):
    from ratebound.web.django import checks  # noqa: F401 - registers itself
    from ratebound.web.django.configuration import Settings, aclose, client_address, close, configured_limits
    from ratebound.web.django.dashboard import Operator, dashboard, staff_operator
    from ratebound.web.django.decorator import exempt, limit
    from ratebound.web.django.middleware import RateLimitMiddleware
    from ratebound.web.django.usage_page import usage_page

__all__ = [
    "Operator",
    "RateLimitMiddleware",
    "Settings",
    "aclose",
    "client_address",
    "close",
    "configured_limits",
    "dashboard",
    "exempt",
    "limit",
    "staff_operator",
    "usage_page",
]
