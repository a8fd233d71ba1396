"""Mistakes that type checkers find: each on a line that ends with the mark."""

import flask
from flask.views import View

from ratebound.web import RouteLimit, wsgi
from ratebound.web.flask import RateLimits

app = flask.Flask(__name__)
limiter = RateLimits(app, "5/minute", storge="memory://")  # error
RateLimits(lambda: "key")  # error
RateLimits("5/minute")  # error
RateLimits(app, default_limits=5)  # error
RateLimits(app, failure="opne")  # error
wsgi.RateLimitMiddleware(app.wsgi_app, "5/minute", storge="memory://")  # error


@limiter.limit("5/minute", key="user")
def item(number: int) -> str:
    return str(number)


@limiter.limit("5/minute")
class Page(View):
    def count(self) -> int:
        return 1


limiter.dashboard("/limits", auth=lambda: "read")  # error
limiter.dashboard()  # error
limiter.dashboard(auth=lambda: "admin")  # error
limiter.dashboard(auth=item)  # error
item("1")  # error
number: int = item(1)  # error
text: str = Page().count()  # error
limiter.limit("5/minute", per_methods=True)  # error
limiter.limit("5/minute", deduct_when=len)  # error
limiter.limit("5/minute", cost="2")  # error
limiter.shared_limit("5/minute")  # error
RouteLimit(limits="5/minute", mode="shaddow")  # error
