"""Applications and admin sites for a browser, served over HTTP by a thread of this process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from waitress.server import create_server

from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.calls import Role
from ratebound.admin.sign_in import GivenSignIn, SignIn, TokenSignIn
from ratebound.admin.site import AdminSite, OperatorCalls
from ratebound.admin.wsgi import AdminWsgi
from tests.servers import HOST

WRITE, READ = "token-that-may-write", "token-that-may-only-read"


def tokens(name: str = "maria") -> TokenSignIn:
    """A sign-in with a token for each role."""
    entries: list[tuple[str, Role, str]] = [(name, "write", WRITE), ("guest", "read", READ)]
    return TokenSignIn(entries)


@contextmanager
def served_asgi(application: Any) -> Iterator[str]:
    """Serve an ASGI application, and return its URL."""
    listener = socket.create_server((HOST, 0))
    config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def served_wsgi(application: Any) -> Iterator[str]:
    """Serve a WSGI application, and return its URL."""
    server = create_server(application, host=HOST, port=0, threads=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.effective_port}/"
    finally:
        server.close()
        thread.join(20)


@contextmanager
def served_site(calls: OperatorCalls, sign_in: SignIn | None = None) -> Iterator[str]:
    """Serve a site with live events, and return its URL."""
    with served_asgi(AdminAsgi(AdminSite(calls, sign_in or tokens()))) as url:
        yield url


@contextmanager
def served_wsgi_site(calls: OperatorCalls, sign_in: SignIn | None = None) -> Iterator[str]:
    """Serve a site without events, and return its URL."""
    with served_wsgi(AdminWsgi(AdminSite(calls, sign_in or tokens()))) as url:
        yield url


def mounted(role: str | None) -> GivenSignIn:
    """A sign-in by the application around the page."""
    return GivenSignIn(lambda request: role)
