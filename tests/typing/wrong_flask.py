"""Mistakes that type checkers find: each on a line that ends with the mark."""

import flask
from flask.views import View

from ratekeeper.web import RouteLimit, wsgi
from ratekeeper.web.flask import RateKeeper

app = flask.Flask(__name__)
limiter = RateKeeper(app, "5/minute", storge="memory://")  # error
RateKeeper(lambda: "key")  # error
RateKeeper("5/minute")  # error
RateKeeper(app, default_limits=5)  # error
RateKeeper(app, failure="opne")  # error
wsgi.RateLimitMiddleware(app.wsgi_app, "5/minute", storge="memory://")  # error


@limiter.limit("5/minute", key="user")
def item(number: int) -> str:
    return str(number)


@limiter.limit("5/minute")
class Page(View):
    def count(self) -> int:
        return 1


item("1")  # error
number: int = item(1)  # error
text: str = Page().count()  # error
limiter.limit("5/minute", per_methods=True)  # error
limiter.limit("5/minute", deduct_when=len)  # error
limiter.limit("5/minute", cost="2")  # error
limiter.shared_limit("5/minute")  # error
RouteLimit(limits="5/minute", mode="shaddow")  # error
