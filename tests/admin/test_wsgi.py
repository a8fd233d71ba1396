"""The site as a WSGI application: mounts, bodies, and the page that asks again and again."""

import io
import json
from typing import Any
from wsgiref.validate import validator

import pytest

from ratebound.admin.operations import Operations
from ratebound.admin.sign_in import GivenSignIn
from ratebound.admin.wsgi import AdminWsgi
from ratebound.policy import AsyncGate
from tests.admin.sites import HOST, READ_TOKEN, WRITE_TOKEN, Answered, GivenFigures, a_policy, a_site


def ask(app: AdminWsgi, method: str, path: str, body: bytes = b"", mount: str = "", **environ: Any) -> Answered:
    before, _, query = path.partition("?")
    started: list[Any] = []
    given = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": mount,
        "PATH_INFO": before,
        "QUERY_STRING": query,
        "SERVER_NAME": HOST,
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": HOST,
        "HTTP_AUTHORIZATION": f"Bearer {WRITE_TOKEN}",
        "REMOTE_ADDR": "198.51.100.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **({"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"} if body else {}),
        **environ,
    }

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        started.extend((status, headers))

    parts: Any = validator(app)(given, start_response)
    found = b"".join(parts)
    parts.close()
    return Answered(int(started[0].split()[0]), {name.lower(): value for name, value in started[1]}, found)


def test_calls_are_answered_and_live_figures_are_not() -> None:
    app = AdminWsgi(a_site())
    session = ask(app, "GET", "/api/session").json
    assert (session["name"], session["live"]) == ("ann", False)
    assert ask(app, "GET", "/api/usage?client=user:42").status == 200
    live = ask(app, "GET", "/api/live")
    assert live.status == 501
    assert "api/figures" in live.json["detail"]


@pytest.mark.parametrize(
    ("mount", "path", "expected"),
    [
        ("/limits", "/api/session", 200),
        ("/limits", "/", 200),
        ("/limits", "", 308),
        ("", "/", 200),
        ("", "", 200),
        ("", "/api/none", 404),
        ("", "/Ã¼", 404),  # the bytes of ü
        ("", "/\xff", 404),
    ],
)
def test_paths_are_read_below_the_mount(mount: str, path: str, expected: int) -> None:
    answer = ask(AdminWsgi(a_site()), "GET", path, mount=mount)
    assert answer.status == expected
    if expected == 308:
        assert answer.headers["location"] == "./limits/"


def test_a_body_is_read_as_far_as_it_is_allowed() -> None:
    app = AdminWsgi(a_site())
    text = json.dumps({"text": "rules: []"}).encode()
    assert ask(app, "POST", "/api/policy/check", text).json["valid"] is False
    assert ask(app, "POST", "/api/policy/check", b"x" * 1_000_001).status == 413
    assert ask(app, "POST", "/api/policy/check", text, CONTENT_TYPE="text/plain").status == 415


class Endless:
    """A body that a server would wait for."""

    def read(self, size: int) -> bytes:
        raise AssertionError("a body without a length must not be read")

    readline = readlines = __iter__ = read


@pytest.mark.parametrize("length", ["", "0", "none", "-5"])
def test_a_body_without_a_length_is_not_waited_for(length: str) -> None:
    app = AdminWsgi(a_site())
    answer = app._request({"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": Endless()})
    assert answer.body == b""


def test_a_body_in_chunks_is_read_where_the_server_ends_it() -> None:
    text = json.dumps({"client": "user:42"}).encode()
    environ = {"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(text), "wsgi.input_terminated": True}
    assert AdminWsgi(a_site())._request(environ).body == text


def test_the_cookie_is_for_the_mount_alone() -> None:
    body = json.dumps({"token": READ_TOKEN}).encode()
    own = {"HTTP_ORIGIN": f"https://{HOST}", "wsgi.url_scheme": "https"}
    cookie = ask(AdminWsgi(a_site()), "POST", "/api/session", body, mount="/limits", **own).headers["set-cookie"]
    assert "; Path=/limits/; " in cookie
    assert cookie.endswith("; Secure")


def test_an_application_signs_in_with_its_own_request() -> None:
    seen: list[Any] = []

    def auth(request: Any) -> str:
        seen.append(request)
        return "read"

    app = AdminWsgi(a_site(sign_in=GivenSignIn(auth)), native=lambda environ: environ["REMOTE_ADDR"])
    assert ask(app, "GET", "/api/session").json["role"] == "read"
    assert seen == ["198.51.100.1"]


def test_what_has_to_be_awaited_is_refused_at_construction() -> None:
    async def auth(request: Any) -> str:
        return "read"

    class Auth:
        async def __call__(self, request: Any) -> str:
            return "read"

    site = a_site()
    site.calls = Operations(AsyncGate(a_policy()), GivenFigures())
    sites = [site, a_site(sign_in=GivenSignIn(auth)), a_site(sign_in=GivenSignIn(Auth()))]
    for one in sites:
        with pytest.raises(TypeError, match="a WSGI server cannot await"):
            AdminWsgi(one)
