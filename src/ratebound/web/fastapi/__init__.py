"""FastAPI and Starlette: the policy's rules and the limits of the endpoint, in one decision.

All limits of a request are foreseen and checked at once, by the two middleware of middleware.py. A limit that cannot be
foreseen, because the router or a decorator hides it, or only a dependency knows the user, is checked when it is called.
"""

from ratebound.from_extra import from_extra

with from_extra("fastapi", starlette="Starlette", anyio="Starlette"):
    from ratebound.web.fastapi.limits import Operator, Passed, RateLimitExceeded, RateLimits, Rejected, RequestView

__all__ = ["Operator", "Passed", "RateLimitExceeded", "RateLimits", "Rejected", "RequestView"]
