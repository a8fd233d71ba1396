"""Flask: `RateLimits(app, "100/minute")`, and limits on views, class-based views and blueprints.

All that holds for a request is asked once, before its view: the policy's rules, the view's limits, those of its
blueprints and of the application. A refusal is Flask's own 429, so that an errorhandler of the application can answer.
"""

try:
    from ratebound.web.flask.keeper import RateLimits
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("flask", "werkzeug"):
        raise
    raise ModuleNotFoundError("Flask is not there: install Ratebound with its extra [flask]") from None

__all__ = ["RateLimits"]
