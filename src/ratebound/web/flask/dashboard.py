"""The dashboard as a blueprint of Flask. Its view runs as any other: hooks of the application come first, and `auth`
sees `flask.request`, `flask.session` and `flask.g`."""

from collections.abc import Callable
from typing import Any

import flask
from flask.blueprints import BlueprintSetupState

from ratebound.admin.messages import AdminRequest
from ratebound.flow import run
from ratebound.web.body import flask_body
from ratebound.web.flask.application import LimitedFlask, current_request, limited_application

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]


View = Callable[..., Any]


def dashboard_blueprint(name: str, auth: Callable[[Any], Any], ledger: Any = None) -> tuple[flask.Blueprint, View]:
    """Return a blueprint with the dashboard of the application in which it is registered, and its view."""
    blueprint = flask.Blueprint(name, __name__)

    def find_operator(request: Any) -> Any:
        return limited_application().finished(auth(request))

    def dashboard(dashboard_path: str | None = None, **_: Any) -> Any:
        return _answer(limited_application(), dashboard_path, find_operator, ledger)

    def register(state: BlueprintSetupState) -> None:
        rules: dict[str, dict[str, Any]] = {"/": {"dashboard_path": ""}, "/<path:dashboard_path>": {}}
        if state.url_prefix and state.url_prefix != "/":
            rules[""] = {}  # without the slash at the end: Flask's own redirect would name a host
        for rule, defaults in rules.items():
            state.add_url_rule(
                rule,
                "dashboard",
                dashboard,
                methods=METHODS,
                defaults=defaults,
                provide_automatic_options=False,
                strict_slashes=True,
            )
        limited = state.app.extensions.get("ratebound")
        if isinstance(limited, LimitedFlask):
            limited.watch_dashboard()

    blueprint.record(register)
    return blueprint, dashboard


def _answer(limited: LimitedFlask, path: str | None, auth: Callable[[Any], Any], ledger: Any) -> Any:
    """Return the response to a request for the dashboard. `path` is None for the mount without its slash."""
    request = current_request()
    below = 0 if path is None else len(path) + 1
    asked = AdminRequest(
        method=request.method,
        path=path,
        query=request.query_string.decode("latin-1"),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=flask_body(request),
        mount=request.root_path + request.path[: len(request.path) - below],
        is_secure=request.is_secure,
        peer=request.environ.get("REMOTE_ADDR") or "",
        native=request,
    )
    answer = run(limited.dashboard_site(auth, ledger).answer(asked))
    return flask.Response(answer.body, answer.status, list(answer.headers))
