"""Flask: `RateLimits(app, "100/minute")`, and limits on views, class-based views and blueprints.

All limits of a request are checked once, before its view: the policy's rules, the view's limits, those of its
blueprints and of the application. A rejection is Flask's own 429, which an errorhandler of the application can answer.
"""

try:
    from ratebound.web.flask.limits import Operator, RateLimits
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("flask", "werkzeug"):
        raise
    raise ModuleNotFoundError('Flask is not installed. Run: pip install "ratebound[flask]"') from None

__all__ = ["Operator", "RateLimits"]
