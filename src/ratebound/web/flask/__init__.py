"""Flask: `RateLimits(app, "100/minute")`, and limits on views, class-based views and blueprints.

All limits of a request are checked once, before its view: the policy's rules, the view's limits, those of its
blueprints and of the application. A rejection is Flask's own 429, which an errorhandler of the application can answer.
"""

from ratebound.from_extra import from_extra

with from_extra("flask", flask="Flask", werkzeug="Flask"):
    from ratebound.web.flask.limits import Operator, RateLimits

__all__ = ["Operator", "RateLimits"]
