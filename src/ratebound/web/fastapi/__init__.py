"""FastAPI and Starlette: the policy's rules, and limits that are said at the endpoint, in one decision.

All that holds for a request is foreseen and asked at once, in the two places of places.py. What could not be foreseen,
because the router hides it, or a decorator does, or only a dependency knows the user, is asked when it is called.
"""

try:
    from ratebound.web.fastapi.limits import Passed, RateLimitExceeded, RateLimits, Refused, RequestView
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("anyio", "starlette"):
        raise
    raise ModuleNotFoundError("Starlette is not there: install Ratebound with its extra [fastapi]") from None

__all__ = ["Passed", "RateLimitExceeded", "RateLimits", "Refused", "RequestView"]
