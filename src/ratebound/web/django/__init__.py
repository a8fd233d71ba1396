"""Django: RateLimitMiddleware, `@limit("5/minute")` on views, and RATEBOUND in the settings.

The only place that imports Django. Early rules are asked on the way in, all others at the view's door, where the route
and the user are known; what never comes to a view is asked for on its way out. Under ASGI only functions of the
application leave the event loop, those that may block.
"""

try:
    from ratebound.web.django import checks  # noqa: F401 - registers itself
    from ratebound.web.django.keeper import Settings, aclose, client_address, close, keeper
    from ratebound.web.django.limited import exempt, limit
    from ratebound.web.django.middleware import RateLimitMiddleware
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("asgiref", "django"):
        raise
    raise ModuleNotFoundError("Django is not there: install Ratebound with its extra [django]") from None

__all__ = ["RateLimitMiddleware", "Settings", "aclose", "client_address", "close", "exempt", "keeper", "limit"]
