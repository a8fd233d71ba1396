"""Flask and pure WSGI."""

from typing import assert_type

import flask
from flask.views import MethodView

from ratebound.policy import RequestView
from ratebound.web import Rejected, RouteLimit, wsgi
from ratebound.web.flask import Operator, RateLimits

app = flask.Flask(__name__)
limiter = RateLimits(
    app,
    "100/minute",
    default_limits=["2 per minute", "1 per second"],
    application_limits=RouteLimit(limits="1000/hour", charge="failure", mode="shadow"),
    user=lambda: flask.request.headers.get("x-user"),
    exempt_when=lambda request: request.path == "/free",
    on_breach=lambda refused: None,
    storage="memory://",
    by=lambda: flask.request.headers.get("x-key"),
    failure="local",
)
later = RateLimits(headers=["x-ratelimit"], rejection=lambda rejection: rejection.detail)


def plan_of() -> str:
    return "5/minute"


def key_of(request: RequestView) -> str | None:
    return request.header("x-key")


def told(refused: Rejected) -> flask.Response:
    return flask.Response(f"wait {refused.retry_after}", refused.status)


@app.get("/<int:number>")
@limiter.limit("5/minute", per_method=True, key=key_of, on_breach=told)
def item(number: int) -> str:
    return str(number)


@limiter.limit(plan_of, otherwise="5/minute", key=[key_of, "address"], cost=lambda: 2)
async def waiting(number: int) -> int:
    return number


@limiter.shared_limit("5/minute", "pages", methods=["POST"])
class Page(MethodView):
    decorators = [limiter.limit("5/minute")]

    @limiter.limit("1/minute")
    def get(self, number: int) -> str:
        return str(number)


blueprint = limiter.limit("5/minute")(flask.Blueprint("shop", __name__))
free = limiter.exempt(flask.Blueprint("free", __name__))


def is_operator() -> Operator | None:
    return Operator("ann", "write") if flask.session.get("user") == "ann" else None


app.register_blueprint(limiter.dashboard(auth=is_operator), url_prefix="/limits")
app.register_blueprint(limiter.dashboard(auth=lambda: "read", name="wall"), url_prefix="/wall")


def block() -> None:
    with limiter.limit("5/minute", name="mail") as part:
        part.charge(2)


async def calls() -> None:
    assert_type(item(1), str)
    assert_type(await waiting(number=1), int)
    assert_type(Page().get(1), str)
    assert_type(blueprint, flask.Blueprint)
    assert_type(free, flask.Blueprint)


app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, "100/minute", failure="open")  # type: ignore[method-assign]
