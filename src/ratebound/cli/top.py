"""The command `ratebound top`: the figures of a running service, or of applications that share a storage, live."""

import json
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click
from rich.console import Console
from rich.live import Live

from ratebound.cli.app import open_console
from ratebound.cli.exchange import Unreachable, exchange
from ratebound.cli.exit_status import NO_STORAGE, errors_told
from ratebound.cli.figures_page import figures_page
from ratebound.cli.parameters import FILE, STORAGE_URL
from ratebound.cli.state import shared_url
from ratebound.errors import RateboundError, StorageError
from ratebound.flow import run
from ratebound.observe.figures_view import FiguresView
from ratebound.observe.gate_figures import problem_of
from ratebound.observe.shared_figures import SharedFigures
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.urls import open_storage

ADMIN = "http://127.0.0.1:4293"  # the default of `ratebound serve`
TOKEN = "RATEBOUND_ADMIN_TOKEN"
PUBLISHED_WITHIN = 3.0  # seconds: every process that is alive has published in this time

Source = Callable[[], dict[str, Any]]  # returns a view; raises RateboundError


@click.command(short_help="Show live figures: decisions, denials and clients.")
@click.option("--admin", metavar="URL", help=f"The control plane, or a mounted dashboard.  [default: {ADMIN}]")
@click.option(
    "--storage",
    type=STORAGE_URL,
    metavar="URL",
    help="Read the figures that applications publish in their storage, instead.",
)
@click.option("--once", is_flag=True, help="Print the figures once, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print each look as one line of JSON.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, metavar="SECONDS", help="The time between two looks."
)
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=5.0, metavar="SECONDS", help="The longest wait.")
@click.option("--ca", type=FILE, help="The certificates to trust, for an https URL.")
def top(
    admin: str | None, storage: str | None, once: bool, as_json: bool, interval: float, timeout: float, ca: str | None
) -> None:
    """Show what is decided now: decisions per second by rule, the most denied clients, and the state of the storage.

    The figures come from a running service, which `ratebound serve` starts, or from a dashboard that an application has
    mounted. The token is read from the environment variable RATEBOUND_ADMIN_TOKEN. With --storage they come from the
    storage that applications share, and no service is needed. Clients are shown as digests.

    The page is for a terminal; Ctrl-C ends it. Elsewhere each look is printed as text.

    \b
    Examples:
      ratebound top
      ratebound top --storage redis://localhost:6379/0 --once
    """
    with (
        errors_told(storage=NO_STORAGE, values=True),
        _source(admin, storage, timeout, ca) as source,
        suppress(KeyboardInterrupt),
    ):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the screen is put in order then, too
        first = source()
        if once or as_json or not open_console().is_terminal:
            _print_looks(source, first, once, as_json, interval)
        else:
            _show_live(source, first, interval, open_console())


def _print_looks(source: Source, first: dict[str, Any], once: bool, as_json: bool, interval: float) -> None:
    console, view = open_console(), first
    while True:
        if as_json:
            click.echo(json.dumps(view))
        else:
            console.print(figures_page(view, console.width))
        if once:
            return
        time.sleep(interval)
        view = _next(source, view)


def _show_live(source: Source, view: dict[str, Any], interval: float, console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(figures_page(view, console.width), refresh=True)
            time.sleep(interval)
            view = _next(source, view)


def _next(source: Source, before: dict[str, Any]) -> dict[str, Any]:
    """Return the next look; the one before with the problem, if there is none."""
    try:
        return source()
    except RateboundError as error:
        return {**before, "problem": f"These figures are old: {error}"}


@contextmanager
def _source(admin: str | None, storage: str | None, timeout: float, ca: str | None) -> Iterator[Source]:
    if admin is not None and storage is not None:
        raise RateboundError("expected either --admin or --storage, not both")
    if storage is None:
        yield _AdminSource(ADMIN if admin is None else admin, timeout, ca)
        return
    opened = None
    try:
        opened = GuardedStorage(open_storage(shared_url(storage, "limits.dashboard(auth=…)")), deadline=timeout)
        yield _StorageSource(opened)
    except (TypeError, ValueError) as error:
        if isinstance(error, RateboundError):
            raise
        raise RateboundError(str(error)) from None
    finally:
        if opened is not None:
            opened.close()


class _AdminSource:
    """The figures of a control plane, or of a mounted dashboard, over HTTP."""

    def __init__(self, url: str, timeout: float, ca: str | None) -> None:
        self._url = url
        self._parts = _split(url)
        self._timeout = timeout
        self._token = os.environ.get(TOKEN, "").strip()
        if not self._token.isprintable() or not self._token.isascii():
            raise RateboundError(f"{TOKEN} has characters that no token has")
        self._context: ssl.SSLContext | None = None
        if ca is not None and self._parts.scheme != "https":
            raise RateboundError(f"option --ca is for an https URL, not {url!r}")
        if self._parts.scheme == "https":
            try:
                self._context = ssl.create_default_context(cafile=ca)
            except OSError as error:  # an SSLError is an OSError
                raise RateboundError(f"option --ca: {ca}: {error.strerror or error}") from None

    def __call__(self) -> dict[str, Any]:
        status, body = self._get(f"{self._parts.path.rstrip('/')}/api/figures")
        if status in (401, 403):
            raise RateboundError(self._refused(status))
        try:
            view = json.loads(body) if status == 200 else None
        except ValueError:
            view = None
        if not isinstance(view, dict) or not view.keys() >= _NEEDED:
            raise RateboundError(
                f"{self._url} has no figures: it answers {status}. Give the address of the control plane of `ratebound"
                " serve`, or of a dashboard that an application has mounted, with --admin"
            )
        return view

    def _get(self, path: str) -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = exchange(
                self._parts,
                target=path,
                headers={"accept": "application/json", **headers},
                timeout=self._timeout,
                context=self._context,
                shown=self._url,
            )
        except Unreachable as error:
            raise RateboundError(
                f"no service answers at {self._url}: {error}. Start one with `ratebound serve`, give its address with"
                " --admin, or read a storage with --storage"
            ) from None
        return answer.status, answer.body or b""

    def _refused(self, status: int) -> str:
        if not self._token:
            return (
                f"{self._url} wants a token: set {TOKEN} to one of its admin_tokens or admin_read_tokens. A service"
                " without them has a token for each run: it is in the link that `ratebound serve` prints in a terminal"
            )
        if status == 401:
            return f"{self._url} does not accept the token in {TOKEN}: use one of its admin_tokens or admin_read_tokens"
        return f"{self._url} does not let the token in {TOKEN} read figures"


_NEEDED = {"at", "processes", "problem", "total", "latency", "rules", "storage", "factors", "slots", "top", "penalized"}


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise RateboundError(f"option --admin: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise RateboundError(
            f"option --admin: expected a URL like {ADMIN} or https://example.com/limits, without a user, a query or a"
            " fragment. The token is read from the environment variable " + TOKEN
        )
    return parts


class _StorageSource:
    """The figures that processes publish in a storage. The first look takes as long as two publications: rates need
    them, and processes that were killed are told apart."""

    def __init__(self, storage: GuardedStorage) -> None:
        self._shared = SharedFigures(storage)
        self._view = FiguresView()
        self._is_first = True

    def __call__(self) -> dict[str, Any]:
        if self._is_first:
            self._look_first()
            self._is_first = False
        else:
            problem, found = "", []
            try:
                found = run(self._shared.reading())
            except StorageError as error:
                problem = problem_of(error)
            self._view.take([], found, problem)
        return self._view.view()

    def _look_first(self) -> None:
        first = run(self._shared.reading())
        self._view.take([], first)
        before = {one["run"]: one["ticks"] for one in first}
        if before:
            time.sleep(PUBLISHED_WITHIN)
        found = [one for one in run(self._shared.reading()) if one["ticks"] != before.get(one["run"])]
        if not found:
            raise RateboundError(
                "no process publishes figures in this storage. Applications do while a dashboard is mounted:"
                " limits.dashboard(auth=…). The service always does. Look also at the prefix of the storage's URL"
            )
        self._view.take([], found)
