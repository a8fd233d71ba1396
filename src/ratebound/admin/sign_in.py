"""Sign-in: operators with tokens and cookies, or those that the application around the site knows.

A token is sent as a bearer token, or exchanged for a signed cookie. The cookie names the operator, the role, when it
ends, a random id, and a digest of its token: a token that is removed from the configuration takes its cookies with it.
"""

import base64
import hmac
import inspect
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from ratebound.admin.calls import ROLES, Operator, Role
from ratebound.admin.messages import AdminRequest, CallError
from ratebound.flow import Flow
from ratebound.http.bearer_token import check_token
from ratebound.http.prefix import parse_address
from ratebound.limiter import Limiter
from ratebound.policy.runtime.operator_documents import MAX_BY, as_line

LIFETIME = 12 * 3600  # seconds, of a cookie
COOKIE = "ratebound_session"
HOST_COOKIE = f"__Host-{COOKIE}"  # a browser takes it only over TLS, for one host and the path /
MOST_ENDED = 10_000  # sessions that were signed out, and whose cookies have not ended
MOST_IN_USE = 1_000  # pairs of a peer and a token
FAILURES = "10/minute"  # wrong tokens of one peer
ALL_FAILURES = "100/minute"  # wrong tokens of all peers
NO_TOKEN = "Sign in, or send a token: Authorization: Bearer TOKEN."
WRONG_TOKEN = "There is no such token."
GIVEN = "given"  # the value of X-Ratebound-CSRF where the application signs in: only the page can send the header

Auth = Callable[[Any], Any]


class SignedIn(NamedTuple):
    """An operator who was recognized. `csrf` is what the header X-Ratebound-CSRF must be in a call that changes
    something; None if no browser adds the credentials by itself."""

    operator: Operator
    csrf: str | None


class SignIn(Protocol):
    """The way in which a site recognizes operators."""

    has_sessions: bool  # True if operators sign in at the site itself

    def who(self, request: AdminRequest) -> Flow[SignedIn | None]:
        """Return who sends a request, None if nobody is known. Raises CallError."""

    def sign_in(self, request: AdminRequest, token: str) -> tuple[SignedIn, str]:
        """Return the operator of a token, and the Set-Cookie of a new session. Raises CallError."""

    def sign_out(self, request: AdminRequest) -> str:
        """End the session of a request, and return the Set-Cookie that removes its cookie."""


class _Entry(NamedTuple):
    operator: Operator
    digest: bytes
    mark: str  # the digest of the token in cookies


class TokenSignIn:
    """Operators with tokens. `entries` are (name, role, token); `secret` signs the cookies.

    All instances that share a secret accept each other's cookies. A session that is signed out ends in this process
    alone; others accept its cookie until it ends by itself. Another secret signs everybody out.
    """

    has_sessions = True

    def __init__(
        self,
        entries: Iterable[tuple[str, Role, str]],
        secret: bytes | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        key = secrets.token_bytes(32) if secret is None else secret
        self._key = hmac.digest(key, b"ratebound admin session", "sha256")
        self._entries = [self._entry(*entry) for entry in entries]
        if not self._entries:
            raise ValueError("no tokens were given: pass at least one (name, role, token), for operators to sign in")
        if len({entry.digest for entry in self._entries}) != len(self._entries):
            raise ValueError("two operators have the same token: give each one a token of its own")
        self._clock = clock
        self._lock = threading.Lock()  # two who sign out at once
        self._ended: dict[str, float] = {}  # sessions that were signed out, with the end of their cookies
        self._in_use: dict[tuple[str, str], float] = {}  # peers and the tokens that they use, with the last use
        self._failures = Limiter(FAILURES)
        self._all_failures = Limiter(ALL_FAILURES)

    def __repr__(self) -> str:
        return f"TokenSignIn({len(self._entries)} tokens)"

    def who(self, request: AdminRequest) -> Flow[SignedIn | None]:
        """Return the operator of a bearer token or of a cookie, None if there is neither.

        Raises CallError for a wrong token. A cookie that is not valid any more is as good as none.
        """
        yield from ()
        operator = self.bearer(request.headers.get("authorization", ""), request.peer)
        if operator is not None:
            return SignedIn(operator, None)
        found = self._session(request)
        return None if found is None else SignedIn(found[0], self._csrf(found[1]))

    def bearer(self, authorization: str, peer: str) -> Operator | None:
        """Return the operator of the header Authorization; None if it has no bearer token. Raises CallError for a
        wrong token."""
        scheme, _, token = authorization.partition(" ")
        return self._checked(peer, token.strip()).operator if scheme.lower() == "bearer" else None

    def sign_in(self, request: AdminRequest, token: str) -> tuple[SignedIn, str]:
        """Return the operator of a token, and the Set-Cookie of a new session. Raises CallError for a wrong token."""
        entry = self._checked(request.peer, token)
        session = secrets.token_urlsafe(12)
        content = [*entry.operator, int(self._clock()) + LIFETIME, session, entry.mark]
        payload = _coded(json.dumps(content).encode())
        value = f"{payload}.{_coded(self._signed(b'session', payload.encode()))}"
        return SignedIn(entry.operator, self._csrf(session)), _set_cookie(request, value, LIFETIME)

    def sign_out(self, request: AdminRequest) -> str:
        """End the session of a request, and return the Set-Cookie that removes its cookie."""
        found = self._session(request)
        if found is not None:
            now = self._clock()
            with self._lock:
                ended = {session: end for session, end in self._ended.items() if end > now}
                if len(ended) >= MOST_ENDED:
                    del ended[min(ended, key=ended.__getitem__)]
                self._ended = {**ended, found[1]: found[2]}
        return _set_cookie(request, "", 0)

    def _entry(self, name: str, role: Role, token: str) -> _Entry:
        if role not in ROLES:
            raise ValueError(f"a role is 'read' or 'write', not {role!r}")
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_BY:
            raise ValueError(f"the name of an operator is one line of at most {MAX_BY} characters, not {name!r}")
        check_token(token, f"the token of {name!r}")
        return _Entry(Operator(name, role), _digest(token), _coded(self._signed(b"token", token.encode())[:12]))

    def _checked(self, peer: str, token: str) -> _Entry:
        """Return the entry of a token, in a time that does not depend on how much of it is right. Raises CallError:
        429 after too many wrong ones, whatever this one is. A token goes on from a network in which it is in use, so
        that wrong ones lock nobody out who has signed in there before."""
        network, given, found = _network(peer), _digest(token), None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, given):
                found = entry
        if found is None or not self._is_in_use(network, found):
            for limiter, key in ((self._failures, network), (self._all_failures, "all")):
                before = limiter.peek(key)
                if not before.allowed:
                    wait = {"Retry-After": str(int(before.retry_after or 0) + 1)}
                    raise CallError(429, "There were too many wrong tokens. Try again later.", headers=wait)
        if found is None:
            self._failures.hit(network)
            self._all_failures.hit("all")
            raise CallError(401, WRONG_TOKEN, headers={"WWW-Authenticate": "Bearer"})
        self._note_use(network, found)
        return found

    def _is_in_use(self, network: str, entry: _Entry) -> bool:
        last = self._in_use.get((network, entry.mark))
        return last is not None and self._clock() - last < LIFETIME

    def _note_use(self, network: str, entry: _Entry) -> None:
        self._in_use.pop((network, entry.mark), None)  # so that it comes to the end
        if len(self._in_use) >= MOST_IN_USE:
            del self._in_use[next(iter(self._in_use))]
        self._in_use[network, entry.mark] = self._clock()

    def _session(self, request: AdminRequest) -> tuple[Operator, str, float] | None:
        """Return the operator, the id and the end of a session; None if no cookie of the request is valid now."""
        names = {HOST_COOKIE} if request.is_secure and not request.mount else {HOST_COOKIE, COOKIE}
        for part in request.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            # A neighbour on the same domain can set a cookie of the same name, which the browser sends first. Where
            # the safe name can be used, the other one does not count.
            found = self._valid(value) if name in names else None
            if found is not None:
                return found
        return None

    def _valid(self, cookie: str) -> tuple[Operator, str, float] | None:
        """Return the operator, the id and the end of the session of a cookie; None if that is not valid now."""
        payload, _, signature = cookie.partition(".")
        given = _decoded(signature)
        if given is None or not hmac.compare_digest(given, self._signed(b"session", payload.encode())):
            return None
        name, role, end, session, mark = json.loads(_decoded(payload) or b"")  # ours: it is signed
        operator = Operator(name, role)
        is_known = any(entry.operator == operator and entry.mark == mark for entry in self._entries)
        return (operator, session, end) if is_known and end > self._clock() and session not in self._ended else None

    def _csrf(self, session: str) -> str:
        return self._signed(b"csrf", session.encode()).hex()[:32]

    def _signed(self, purpose: bytes, content: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + content, "sha256")


class GivenSignIn:
    """Operators that the application around a mounted site knows: `auth(request)` says who sends a request.

    It returns None for nobody, "read", "write" or an Operator, and may be async where the server is. It gets the
    framework's own request. Whatever it raises is raised: frameworks answer so with a redirect to their own sign-in.
    """

    has_sessions = False

    def __init__(self, auth: Auth) -> None:
        if not callable(auth):
            raise TypeError(
                "auth must be a function of the request that returns None, 'read', 'write' or an Operator, not"
                f" {auth!r}"
            )
        self._auth = auth
        self.is_async = inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(
            getattr(auth, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def who(self, request: AdminRequest) -> Flow[SignedIn | None]:
        """Return the operator that the application names. Raises TypeError for an answer that says nothing."""
        found = yield lambda: self._auth(request.native)
        if found is None or found is False:
            return None
        if isinstance(found, str) and found in ROLES:
            found = Operator("", found)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str) and found[1] in ROLES:
            return SignedIn(Operator(as_line(found[0], MAX_BY), found[1]), GIVEN)
        if inspect.iscoroutine(found):
            found.close()
        raise TypeError(f"auth must return None, 'read', 'write' or an Operator, not {found!r}")

    def sign_in(self, request: AdminRequest, token: str) -> tuple[SignedIn, str]:
        """Raise CallError: the application signs in."""
        raise CallError(404, "Operators sign in at the application, not here.")

    def sign_out(self, request: AdminRequest) -> str:
        """Raise CallError: the application signs out."""
        raise CallError(404, "Operators sign out at the application, not here.")


def _set_cookie(request: AdminRequest, value: str, seconds: int) -> str:
    # A proxy that ends TLS does not tell, but the page's own Origin does
    is_secure = request.is_secure or request.headers.get("origin", "").startswith("https://")
    name = HOST_COOKIE if request.is_secure and not request.mount else COOKIE
    path = f"{quote(request.mount)}/"
    secure = "; Secure" if is_secure else ""
    return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _network(peer: str) -> str:
    """Return the part of a peer's address that one attacker does not choose freely."""
    address = parse_address(peer)
    if address is not None and address.version == 6:
        return address.exploded[:19]  # the first 64 bits
    return peer or "unknown"


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _coded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
