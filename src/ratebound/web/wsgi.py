"""Pure WSGI: any framework, no import of one."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Unpack
from urllib.parse import quote

from ratebound.flow import run
from ratebound.http.header_plan import Pairs
from ratebound.policy import RequestView
from ratebound.policy.functions import check_takes
from ratebound.policy.match.reading import SAFE, Paths, configured_prefixes, is_configured, read_paths
from ratebound.policy.match.request import ANONYMOUS, Wire
from ratebound.usage import Usage
from ratebound.web.body import wsgi_body
from ratebound.web.dashboard import Auth, DashboardLedger, needing_auth, wsgi_dashboard
from ratebound.web.gate import WebGate
from ratebound.web.load_meter import METERED, LoadMeter, meter_wsgi
from ratebound.web.mounts import WsgiMount
from ratebound.web.options import AnyPolicy, Options, checked_gate
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.user import User, found_user_id, identified, user_id, user_is_given
from ratebound.web.visit import Visit
from ratebound.web.wsgi_plain_path import PASSED as PASSED
from ratebound.web.wsgi_plain_path import check_plain
from ratebound.web.wsgi_response import Application, Environ, track_response

REASONS = {429: "Too Many Requests", 403: "Forbidden", 503: "Service Unavailable"}

UNKNOWN_USER = (
    "neither the server nor a middleware around it has set REMOTE_USER: put it inside your authentication middleware,"
    " or give it user=, a function of the environ"
)


def user_of(environ: Environ) -> User:
    """Return the user whom the server, or a middleware around this one, has authenticated."""
    user = environ.get("REMOTE_USER")
    return None if user is None else found_user_id(user)


def _paths(environ: Environ) -> Paths:
    """Return the readings of the path: the target where the server tells it, and with and without SCRIPT_NAME."""
    raw: str | None = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    target = raw.partition("?")[0] if raw else None
    path: str = environ.get("PATH_INFO") or ""
    prefix: str = environ.get("SCRIPT_NAME") or ""
    if target == path and not prefix and not configured_prefixes():
        return path
    return paths_below(target, path, prefix, "latin-1")


def paths_below(target: str | None, path: str, prefix: str, encoding: str, known: str = "") -> Paths:
    """Return the readings of a path below a prefix. WSGI hands bytes over as if they were latin-1, Django decodes them.

    `known` is the prefix that the operator configured, if it is known.
    """
    full = prefix + path if path and path[0] != "/" else prefix.rstrip("/") + path
    below = path if path.startswith("/") else f"/{path}"  # as frameworks read it
    text = prefix.encode(encoding, "replace").decode("utf-8", "replace")
    is_known = is_configured(text) or text.strip("/") == known.strip("/")
    others = [(full.encode(encoding, "replace"), is_known)] if prefix else []
    if target is None:
        target = quote(full.encode(encoding, "replace") or b"/", safe=SAFE)
    prefixes = [one for one in (text, known) if one]
    return read_paths(target, below.encode(encoding, "replace"), others, prefixes, text if is_known else "")


def _headers(environ: Environ) -> Pairs:
    headers = [
        (name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("HTTP_")
    ]
    return headers + [
        (name.replace("_", "-").lower(), environ[name])
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if environ.get(name)
    ]


WIRE = Wire(
    paths=_paths,
    query=lambda environ: environ.get("QUERY_STRING", ""),
    host=lambda environ: environ.get("HTTP_HOST", ""),
    headers=_headers,
    scheme=lambda environ: environ.get("wsgi.url_scheme", "http"),
    is_scripted=lambda environ: "HTTP_ORIGIN" in environ,
    path_params=lambda environ: environ.get("wsgiorg.routing_args", ((), {}))[1],
    session=lambda environ: environ.get("beaker.session"),
    state=lambda environ: environ,
    request=lambda environ: environ,
    no_user=lambda environ: "" if "REMOTE_USER" in environ else UNKNOWN_USER,
    anonymous=ANONYMOUS,
)


def request_view(environ: Environ, user: User = None, route: str | None = None, wire: Wire = WIRE) -> RequestView:
    """Return a request as rules see it."""
    return RequestView.on_demand(
        wire, environ, environ["REQUEST_METHOD"], environ.get("REMOTE_ADDR") or None, user, route
    )


class RateLimitMiddleware:
    """Limits for a WSGI application.

    A handler sees the decision in `environ["ratebound.passed"]`. `usage_of`, `grant`, `reset`, `holders`, `block`,
    `unblock`, `blocks` and other calls for operators are those of the gate: `middleware.reset("user:42")`.

    Args:
        app: The application.
        policy: Limits as text or by tier, a Policy, a PolicyFile, the path of a policy file (read again when it
            changes), a PolicyUrl, the URL of a policy (fetched again and again), or a dict with the keys of a file.
        gate: A gate that several applications share, in place of a policy.
        user: A function of the environ that returns who is authenticated: an id, an `Identity`, or None. By default it
            is REMOTE_USER.
        **options: Options of `WebGate`, like `storage`, `max_delay` and `listeners`, and of `Policy`, like `failure`,
            `by` and `headers`.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.
        TypeError: An option is unknown or something else than expected. The message says what to write.
        ValueError: A URL or a duration cannot be read.

    Examples:
        >>> from ratebound.web.wsgi import RateLimitMiddleware
        >>> def application(environ, start_response):
        ...     start_response("200 OK", [])
        ...     return [b"hello"]
        >>> limited = RateLimitMiddleware(application, "1/minute")
        >>> environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "203.0.113.7"}
        >>> statuses = []
        >>> for _ in range(2):
        ...     body = b"".join(limited(environ.copy(), lambda status, headers, *_: statuses.append(status)))
        >>> statuses
        ['200 OK', '429 Too Many Requests']
    """

    def __init__(
        self,
        app: Application,
        policy: AnyPolicy | None = None,
        *,
        gate: WebGate | None = None,
        user: Callable[[Environ], Any] = user_of,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self.gate = checked_gate(gate, policy, options) or WebGate(policy, **options)
        self.user = user if user is user_of else identified(user, "the environ")
        self._wire = WIRE if user is user_of else WIRE._replace(no_user=user_is_given)
        self.usage_of, self.grant, self.reset = self.gate.usage_of, self.gate.grant, self.gate.reset
        self.block, self.unblock, self.blocks = self.gate.block, self.gate.unblock, self.gate.blocks
        self.override, self.overrides = self.gate.override, self.gate.overrides
        self.remove_override, self.remove_switch = self.gate.remove_override, self.gate.remove_switch
        self.set_switch, self.switches, self.promote = self.gate.set_switch, self.gate.switches, self.gate.promote
        self.changes, self.record = self.gate.changes, self.gate.record
        self.holders = self.gate.holders

    def usage(self, environ: Environ, *, all_rules: bool = False, user: Any = None) -> list[Usage]:
        """Return what the client of a request has used of each limit that the request was checked against. Charges
        nothing.

        Args:
            environ: The environ of the request.
            all_rules: True for every limit that counts this client, whatever the path or method of the request, but for
                limits that all clients share.
            user: The user, if the adapter does not know it.
        """
        if not all_rules:
            return self.gate.usage_after(environ.get(PASSED))
        known = self.user(environ) if user is None else user_id(user)
        return self.gate.usage(request_view(environ, known, None, self._wire))

    @needing_auth
    def dashboard(self, *, auth: Auth[[Environ]], ledger: DashboardLedger | None = None) -> Application:
        """Return the dashboard of these limits as an application, to be mounted in front of this one: see
        `with_dashboard`.

        Behind the middleware its requests would be limited.

        Args:
            auth: A function of the environ. It returns None, `"read"`, `"write"`, or an `Operator`.
            ledger: A `Ledger` whose history the dashboard shows, too.

        Raises:
            TypeError: `auth` takes other arguments.
        """
        check_takes(auth, "the environ", option="auth")
        return wsgi_dashboard(self.gate, auth, ledger)

    @needing_auth
    def with_dashboard(self, path: str, *, auth: Auth[[Environ]], ledger: DashboardLedger | None = None) -> WsgiMount:
        """Return this application with the dashboard in front of it. Requests for the dashboard are not limited.

        Args:
            path: The path of the dashboard, like `"/limits"`.
            auth: A function of the environ. It returns None, `"read"`, `"write"`, or an `Operator`.
            ledger: A `Ledger` whose history the dashboard shows, too.

        Raises:
            TypeError: `auth` takes other arguments.

        Examples:
            >>> from ratebound.web.wsgi import RateLimitMiddleware
            >>> def application(environ, start_response): ...
            >>> limited = RateLimitMiddleware(application, "100/minute")
            >>> site = limited.with_dashboard("/limits", auth=lambda environ: None)
        """
        return WsgiMount(self, path, self.dashboard(auth=auth, ledger=ledger))

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        gate, around = self.gate, environ.get(PASSED)
        if gate.meter is not None and METERED not in environ:
            return metered(gate.meter, self, environ, start_response)
        if around is not None and gate.owns(around):
            return self.app(environ, start_response)  # checked already, by one around this one
        rules, visit, user = gate.rules_for(), Visit(), self.user(environ)
        plain = check_plain(gate.plain, rules, self._wire, environ) if user is None else None
        if plain is not None:
            visit.answer = plain
            if isinstance(plain, Rejected):
                return reject(plain, environ, start_response)
            environ[PASSED] = plain
            return track_response(gate, self.app, visit, environ, start_response)
        view = request_view(environ, user, None, self._wire)
        if rules.is_direct:
            answer = visit.answer = rules.answer(view, [gate.decide_by(rules.compiled, view, rules.last_stage)])
            if isinstance(answer, Passed) and answer.delay:
                gate.sleep(answer)
        else:
            answer = run(visit.check(gate, rules, view, read_body=partial(wsgi_body, environ)))
        silence(around)
        if isinstance(answer, Rejected):
            return reject(answer, environ, start_response)
        environ[PASSED] = answer
        return track_response(gate, self.app, visit, environ, start_response)


def metered(
    meter: LoadMeter, app: Application, environ: Environ, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Run an application if there is a place for the request, and reject it otherwise."""
    if METERED in environ:  # an application around this one is metered
        return app(environ, start_response)
    entered = meter.enter(partial(request_view, environ))
    if isinstance(entered, Rejected):
        return reject(entered, environ, start_response)
    return meter_wsgi(entered, app, environ, start_response)


def reject(rejected: Rejected, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer without the application."""
    reason = REASONS.get(rejected.status, "Rejected")
    headers: Pairs = [*rejected.headers, ("Content-Length", str(len(rejected.body)))]
    start_response(f"{rejected.status} {reason}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [rejected.body]
