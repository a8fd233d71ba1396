"""The command `ratebound ask`: ask a running service from a terminal, over each of its wire formats.

The exit status is 0 if the request is allowed, 3 if it is denied, and 2 if there is no answer.
"""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from ratebound.cli.command_group import CommandGroup
from ratebound.cli.exit_status import errors_told
from ratebound.cli.parameters import FILE
from ratebound.cli.serve import service_module
from ratebound.errors import RateboundError

DENIED = 3
SET_TOKEN = "Set RATEBOUND_TOKEN or --token-file."
UNAUTHENTICATED = 16  # the status of gRPC
ALIASES = {"throttle": "CL.THROTTLE", "hit": "RB.HIT", "peek": "RB.PEEK", "reset": "RB.RESET", "decide": "RB.DECIDE"}
# The defaults of `ratebound serve`; its table of settings needs packages that are not needed to show the help.
HTTP = "127.0.0.1:4290"
GRPC = "127.0.0.1:4291"
RESP = "127.0.0.1:4292"
F = TypeVar("F", bound=Callable[..., Any])


class _Service:
    """The address of a service, and how to connect to it."""

    def __init__(self, to: str, token_file: str | None, ca: str | None, tls: bool, timeout: float) -> None:
        settings = service_module("ratebound.service.settings")
        try:
            self.listen = settings.read_listen(to)
        except ValueError as error:
            raise RateboundError(f"option --to: {error}") from None
        if self.listen is None:
            raise RateboundError("option --to: expected an address, not off")
        self.timeout = timeout
        self.token = _token(token_file)
        try:
            self._context = ssl.create_default_context(cafile=ca) if tls or ca else None
        except OSError as error:  # an SSLError is an OSError
            raise RateboundError(f"option --ca: {ca}: {error.strerror or error}") from None

    @property
    def tls(self) -> bool:
        """True if connections use TLS."""
        return self._context is not None

    def connect(self, *protocols: str) -> socket.socket:
        """Return a connection. Raises RateboundError if there is no service."""
        listen = self.listen
        try:
            if listen.path:
                plain = socket.socket(socket.AF_UNIX)
                plain.settimeout(self.timeout)
                plain.connect(listen.path)
            else:
                plain = socket.create_connection((listen.host, listen.port), self.timeout)
            if self._context is None:
                return plain
            if protocols:
                self._context.set_alpn_protocols(list(protocols))
            return self._context.wrap_socket(plain, server_hostname=listen.host or "localhost")
        except ssl.SSLCertVerificationError as error:
            raise RateboundError(
                f"the certificate of {listen} is not valid here: {error.verify_message}. Name the authority that signed"
                " it with --ca FILE, and an address that the certificate has with --to"
            ) from None
        except ssl.SSLError as error:
            raise RateboundError(
                f"{listen} does not use TLS: {error.reason}. Leave out --tls and --ca, or give another address by --to"
            ) from None
        except OSError as error:
            reason = getattr(error, "strerror", None) or error
            raise RateboundError(
                f"no service answers at {listen}: {reason}. Start one with `ratebound serve`, or give its address with"
                " --to"
            ) from None


def _token(file: str | None) -> str:
    if file is None:
        return os.environ.get("RATEBOUND_TOKEN", "")
    try:
        words = Path(file).read_text("utf-8").split()
    except (OSError, ValueError) as error:
        raise RateboundError(f"option --token-file: {file}: {getattr(error, 'strerror', None) or error}") from None
    if not words:
        raise RateboundError(f"option --token-file: {file} is empty")
    return words[0]


def _options(default: str) -> Callable[[F], F]:
    """Return a decorator that adds the options that all commands have."""

    def add(command: F) -> F:
        for option in (
            click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON."),
            click.option(
                "--timeout",
                type=click.FloatRange(0.001, 60),
                default=5.0,
                metavar="SECONDS",
                help="The longest wait.",
            ),
            click.option("--ca", type=FILE, help="The certificates to trust; the service must use TLS."),
            click.option("--tls", is_flag=True, help="Use TLS."),
            click.option("--token-file", type=FILE, help="A file with the token; else RATEBOUND_TOKEN."),
            click.option("--to", default=default, metavar="ADDRESS", help="Where the service is."),
        ):
            command = option(command)
        return command

    return add


@click.group(cls=CommandGroup, short_help="Ask a running service over HTTP, gRPC or RESP.")
def ask() -> None:
    """Ask a running service, which `ratebound serve` starts, and print its answer.

    The exit status is 0 if the request is allowed, 3 if it is denied, and 2 if there is no answer. The token is
    read from --token-file, or from the environment variable RATEBOUND_TOKEN.

    \b
    Examples:
      ratebound ask http decide --path /items --address 203.0.113.7
      ratebound ask resp throttle user:42 15 30 60
    """


@ask.group("http", cls=CommandGroup, short_help="Ask over HTTP.")
def over_http() -> None:
    """Ask over HTTP: the policy (decide), or limits of your own (hit, peek, usage, reset).

    \b
    Examples:
      ratebound ask http decide --method POST --path /login --address 203.0.113.7
      ratebound ask http hit user:42 "10/minute"
    """


@over_http.command(short_help="Let the policy decide a described request.")
@click.option("--method", default="GET", metavar="METHOD", help="The method.")
@click.option("--path", required=True, metavar="PATH", help="The path, with or without a query.")
@click.option("--host", metavar="HOST", help="The host that was asked.")
@click.option("--address", metavar="ADDRESS", help="The address of the client.")
@click.option("--user", metavar="USER", help="The user that was authenticated.")
@click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header; may be given several times."
)
@_options(HTTP)
def decide(method: str, path: str, headers: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Let the policy of the service decide a described request.

    \b
    Examples:
      ratebound ask http decide --method POST --path /login --address 203.0.113.7
      ratebound ask http decide --path /items --user 42 --json
    """
    path, mark, query = path.partition("?")
    described: dict[str, Any] = {"method": method, "path": path, **({"query": query} if mark else {})}
    for name in ("host", "address", "user"):
        if given[name] is not None:
            described[name] = given[name]
        del given[name]
    lines: dict[str, list[str]] = {}
    with errors_told():
        for header in headers:
            name, colon, value = header.partition(":")
            if not colon:
                raise RateboundError(f"option --header: expected 'NAME: VALUE', not {header!r}")
            lines.setdefault(name.strip(), []).append(value.strip())
    if lines:
        described["headers"] = lines
    _call("/v1/decide", described, as_json, given)


@over_http.command(short_help="Spend limits of your own.")
@click.argument("key")
@click.argument("limits")
@click.option("--cost", type=int, default=1, metavar="UNITS", help="The units to spend.")
@_options(HTTP)
def hit(key: str, limits: str, cost: int, as_json: bool, **given: Any) -> None:
    """Spend COST of LIMITS for KEY.

    \b
    Examples:
      ratebound ask http hit user:42 "10/minute"
      ratebound ask http hit user:42 "10/minute; 100/hour" --cost 5
    """
    _call("/v1/hit", {"key": key, "limits": limits, "cost": cost}, as_json, given)


@over_http.command(short_help="Look at limits of your own, and spend nothing.")
@click.argument("key")
@click.argument("limits")
@_options(HTTP)
def peek(key: str, limits: str, as_json: bool, **given: Any) -> None:
    """Show whether LIMITS allow KEY a request now. Nothing is spent.

    \b
    Examples:
      ratebound ask http peek user:42 "10/minute"
      ratebound ask http peek user:42 "10/minute" --json
    """
    _call("/v1/peek", {"key": key, "limits": limits}, as_json, given)


@over_http.command(short_help="Show what a key has used.")
@click.argument("key")
@click.argument("limits")
@_options(HTTP)
def usage(key: str, limits: str, as_json: bool, **given: Any) -> None:
    """Show what KEY has used of LIMITS.

    \b
    Examples:
      ratebound ask http usage user:42 "10/minute"
      ratebound ask http usage user:42 "10000/calendar-month" --json
    """
    _call("/v1/usage", {"key": key, "limits": limits}, as_json, given)


@over_http.command(short_help="Forget what a key has spent.")
@click.argument("key")
@click.argument("limits")
@_options(HTTP)
def reset(key: str, limits: str, as_json: bool, **given: Any) -> None:
    """Forget what KEY has spent of LIMITS.

    \b
    Examples:
      ratebound ask http reset user:42 "10/minute"
      ratebound ask http reset user:42 "10/minute" --to 127.0.0.1:4290
    """
    _call("/v1/reset", {"key": key, "limits": limits}, as_json, given)


@ask.command("grpc", short_help="Ask Envoy's rate limit service, over gRPC.")
@click.argument("domain")
@click.argument("entries", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option("--hits", type=click.IntRange(0), default=1, metavar="UNITS", help="The units to spend.")
@_options(GRPC)
def over_grpc(domain: str, entries: tuple[str, ...], hits: int, as_json: bool, **given: Any) -> None:
    """Ask as Envoy does: one descriptor of DOMAIN, with entries KEY=VALUE in order.

    \b
    Examples:
      ratebound ask grpc edge remote_address=203.0.113.7
      ratebound ask grpc edge generic_key=login remote_address=203.0.113.7 --hits 2
    """
    messages = service_module("ratebound.service.envoy_messages")
    client = service_module("ratebound.service.grpc_client")
    with errors_told():
        request = messages.RateLimitRequest(domain=domain.encode(), hits_addend=hits)
        descriptor = request.descriptors.add()
        for entry in entries:
            key, equals, value = entry.partition("=")
            if not equals or not key:
                raise RateboundError(f"expected an entry KEY=VALUE, not {entry!r}")
            descriptor.entries.add(key=key.encode(), value=value.encode())
        if hits == 0:
            descriptor.hits_addend.value = 0
        service = _Service(**given)
        with service.connect("h2") as connection:
            try:
                raw = client.call_unary(
                    connection,
                    str(service.listen),
                    messages.METHOD.decode(),
                    request.SerializeToString(),
                    service.token,
                    tls=service.tls,
                )
            except client.GrpcFailure as error:
                status = "" if error.status is None else f" (gRPC status {error.status})"
                hint = f"\n{SET_TOKEN}" if error.status == UNAUTHENTICATED else _tls_hint(service, error.status is None)
                raise RateboundError(f"the service did not decide: {error}{status}{hint}") from None
            except OSError as error:
                raise _no_answer(service, error) from None
    answer = messages.RateLimitResponse.FromString(raw)
    is_denied = answer.overall_code != messages.OK
    _show_grpc(answer, messages.CODE_NAMES, is_denied, as_json)
    raise SystemExit(DENIED if is_denied else 0)


def _show_grpc(answer: Any, names: dict[int, str], is_denied: bool, as_json: bool) -> None:
    statuses = []
    for status in answer.statuses:
        shown: dict[str, Any] = {"code": names.get(status.code, str(status.code))}
        if status.HasField("current_limit"):
            shown["limit"] = {"requests_per_unit": status.current_limit.requests_per_unit}
            if status.current_limit.name:
                shown["limit"]["name"] = status.current_limit.name
            shown["remaining"] = status.limit_remaining
        if status.HasField("duration_until_reset"):
            shown["reset_after"] = status.duration_until_reset.seconds
        statuses.append(shown)
    headers = {header.key: header.value or header.raw_value.decode() for header in answer.response_headers_to_add}
    whole = {"overall_code": names.get(answer.overall_code, ""), "statuses": statuses, "headers": headers}
    if as_json:
        click.echo(json.dumps(whole, indent=2))
        return
    click.echo("denied" if is_denied else "allowed")
    for status in statuses:
        limit = status.get("limit", {})
        name = limit.get("name", "")
        parts = [f"{status['code']}"]
        if limit:
            parts.append(f"{status['remaining']} of {limit['requests_per_unit']} remain{f' of {name}' if name else ''}")
        if "reset_after" in status:
            parts.append(f"reset after {status['reset_after']} s")
        if not limit:
            parts.append("no rule limits this descriptor")
        click.echo(f"  {', '.join(parts)}")


@ask.command("resp", short_help="Send a command of the Redis protocol.")
@click.argument("command")
@click.argument("arguments", nargs=-1)
@_options(RESP)
def over_resp(command: str, arguments: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Send a command: throttle (CL.THROTTLE), hit (RB.HIT), peek, reset, decide, or any other by its full name.

    \b
    Examples:
      ratebound ask resp throttle user:42 15 30 60
      ratebound ask resp hit user:42 "10/minute"
    """
    hiredis = service_module("hiredis")
    words = [ALIASES.get(command.lower(), command), *arguments]
    with errors_told():
        service = _Service(**given)
        with service.connect() as connection:
            reader = hiredis.Reader(encoding="utf-8", errors="replace")
            try:
                if service.token:
                    _exchange(service, connection, reader, ["AUTH", service.token])
                answer = _exchange(service, connection, reader, words)
            except OSError as error:
                raise _no_answer(service, error) from None
    _show_resp(words[0].upper(), answer, as_json)


def _exchange(service: _Service, connection: socket.socket, reader: Any, words: Sequence[str]) -> Any:
    encoded = [word.encode() for word in words]
    connection.sendall(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in encoded))
    while (answer := reader.gets()) is False:
        received = connection.recv(65536)
        if not received:
            raise RateboundError(f"{service.listen} closed the connection without an answer{_tls_hint(service)}")
        reader.feed(received)
    if isinstance(answer, Exception):
        hint = f"\n{SET_TOKEN}" if str(answer).startswith(("NOAUTH", "WRONGPASS")) else ""
        raise RateboundError(f"the service answered: {answer}{hint}")
    return answer


def _show_resp(command: str, answer: Any, as_json: bool) -> None:
    is_denied = False
    if command == "CL.THROTTLE" and isinstance(answer, list):
        names = ("limited", "limit", "remaining", "retry_after", "reset_after")
        answer = dict(zip(names, answer, strict=False))
        is_denied = bool(answer["limited"])
    elif command.startswith("RB.") and isinstance(answer, list) and len(answer) % 2 == 0:
        answer = dict(zip(answer[::2], answer[1::2], strict=True))
        is_denied = answer.get("allowed") in (0, False)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif isinstance(answer, dict):
        click.echo("denied" if is_denied else "allowed")
        _show_fields(answer)
    else:
        click.echo(json.dumps(answer) if isinstance(answer, list | None) else str(answer))
    raise SystemExit(DENIED if is_denied else 0)


# HTTP


def _call(path: str, body: dict[str, Any], as_json: bool, given: dict[str, Any]) -> None:
    """Call the HTTP API, show the answer, and exit."""
    with errors_told():
        service = _Service(**given)
        with service.connect("http/1.1") as connection:
            client = http.client.HTTPConnection("service", timeout=service.timeout)
            client.sock = connection
            headers = {"host": str(service.listen), "content-type": "application/json"}
            if service.token:
                headers["authorization"] = f"Bearer {service.token}"
            try:
                client.request("POST", path, json.dumps(body), headers)
                response = client.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise _no_answer(service, error) from None
        try:
            answer = json.loads(text)
        except ValueError:
            raise RateboundError(f"{service.listen} is no service of Ratebound: it answers {response.status}") from None
        if response.status != 200:
            raise RateboundError(_problem(response.status, answer))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _show_http(answer)
    is_denied = isinstance(answer, dict) and answer.get("allowed") is False
    raise SystemExit(DENIED if is_denied else 0)


def _show_http(answer: Any) -> None:
    if not isinstance(answer, dict) or "allowed" not in answer:
        click.echo(json.dumps(answer, indent=2))
        return
    status = f", status {answer['status']}" if "status" in answer else ""
    click.echo(("allowed" if answer["allowed"] else "denied") + status)
    decision = answer.get("decision", answer) or {}
    limit = decision.get("limit")
    shown = {"limit": _limit_text(limit) if isinstance(limit, dict) else limit}
    shown |= {name: decision.get(name) for name in ("remaining", "retry_after", "reset_after", "delay", "degraded")}
    _show_fields({name: value for name, value in shown.items() if name == "remaining" or value})
    _show_fields(answer.get("headers") or {})
    if answer.get("body"):
        click.echo(f"  {answer['body']}")


def _limit_text(limit: dict[str, Any]) -> str:
    """Return a limit as text, with its name if that says more: the name of a rule."""
    text, name = limit.get("text", ""), limit.get("name", "")
    return f"{text} ({name})" if name and name not in text else text


def _show_fields(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if value is not None and name not in ("limited", "allowed"):
            click.echo(f"  {name}: {value}")


def _problem(status: int, answer: Any) -> str:
    if not isinstance(answer, dict):
        return f"the service answered {status}"
    lines = [f"the service answered {status}: {answer.get('detail') or answer.get('title') or ''}"]
    for error in answer.get("errors") or ():
        with suppress(TypeError, KeyError):
            line = f"  {error['field']}: {error['detail']}"
            if line.strip() not in lines[0]:  # the detail of one mistake has it already
                lines.append(line)
    if status == 401:
        lines.append(SET_TOKEN)
    return "\n".join(lines)


def _no_answer(service: _Service, error: Exception) -> RateboundError:
    if isinstance(error, TimeoutError):
        return RateboundError(f"{service.listen} did not answer within {service.timeout:g} s")
    reason = getattr(error, "strerror", None) or error or type(error).__name__
    return RateboundError(f"{service.listen} gave no answer: {reason}{_tls_hint(service)}")


def _tls_hint(service: _Service, is_closed: bool = True) -> str:
    return ". If it uses TLS, add --tls, or --ca FILE" if is_closed and not service.tls else ""
