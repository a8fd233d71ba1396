"""The command `ratebound call`: sends a request, and shows in words what the API says about its limits."""

import base64
import json
import re
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

import click
from rich.console import Console
from rich.text import Text

from ratebound import __version__
from ratebound.cli.advice_words import doubts, limit_lines, quota_words, refusal_words, retry_words, style_words
from ratebound.cli.app import open_console
from ratebound.cli.exchange import Exchanged, NoAnswer, Unreachable, exchange
from ratebound.cli.exit_status import errors_told
from ratebound.cli.figures_page import shown
from ratebound.cli.parameters import FILE
from ratebound.cli.words import duration, number
from ratebound.errors import RateboundError
from ratebound.http import Advice, Quota, read_advice

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
VALUE = re.compile(r"[\t -~\x80-\xff]*")
MOST_INPUT = 10_000_000  # bytes of a file with data
LEAST_SECRET = 8  # characters
PLAIN = re.compile(r"[0-9.]+|[A-Za-z_-]{1,15}|[a-z*]+/[a-z0-9.+*-]+")  # a number, a word, a media type
PATH_TOKEN = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z]).{20,}")
MOST_REPEATS = 1_000


class _Request(NamedTuple):
    method: str
    address: SplitResult
    target: str
    headers: dict[str, str]
    data: bytes | None
    shown: str  # the URL without query and tokens
    secrets: tuple[str, ...]  # longest first


@click.command(short_help="Show what an API says about its limits.")
@click.argument("url", metavar="URL")
@click.option("-X", "--request", "method", metavar="METHOD", help="The method.  [default: GET, or POST with --data]")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header field; @FILE: a file."
)
@click.option("-d", "--data", metavar="TEXT", help="The body of the request; @FILE: a file, @-: the standard input.")
@click.option(
    "--repeat",
    type=click.IntRange(1, MOST_REPEATS),
    default=1,
    metavar="N",
    help="Send up to N requests, one after the other. A refusal ends it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each answer as one line of JSON.")
@click.option("--timeout", type=click.FloatRange(0.1, 600), default=30.0, metavar="SECONDS", help="The longest wait.")
@click.option("--ca", type=FILE, help="The certificates to trust, for an https URL.")
def call(
    url: str,
    method: str | None,
    headers: tuple[str, ...],
    data: str | None,
    repeat: int,
    as_json: bool,
    timeout: float,
    ca: str | None,
) -> None:
    """Send a request to URL, and show what the API says about its limits: each quota, what a refusal means, when to
    retry, and what is unclear or contradictory in its fields.

    It knows the drafts of the IETF and the fields of many vendors. Redirects are not followed. Of the request,
    only the method and the URL are printed, without user and query. Other users of the machine can see the arguments of
    a command, so put a token into a file: -H @FILE.

    The exit status is 0 if the server answered, even with a refusal, 1 if no answer came, and 2 for wrong usage.

    \b
    Examples:
      ratebound call https://api.github.com/rate_limit
      ratebound call https://api.example.com/v1/items -H @token.txt --repeat 5
    """
    with errors_told():
        request = _read_request(url, method, headers, data)
        context = _tls(request, ca)
        answers: list[tuple[Exchanged, Advice]] = []
        for place in range(repeat):
            try:
                answer = _sent(request, timeout, context)
            except NoAnswer as error:
                if answers and not as_json:
                    _show_course(answers, open_console())
                why = f"no server answers at {request.shown}: {error}" if isinstance(error, Unreachable) else str(error)
                click.echo(shown(why), err=True)
                raise SystemExit(1) from None
            now = time.time()
            advice = read_advice(answer.status, answer.headers, body=answer.body, now=now)
            answers.append((answer, advice))
            if as_json:
                click.echo(json.dumps(_as_json(answer, advice, now)))
            elif place + 1 == repeat or advice.refused:
                if repeat > 1:
                    _show_course(answers, open_console())
                _show(request, answer, advice, now, open_console())
            if advice.refused:
                break


def _read_request(url: str, method: str | None, lines: Sequence[str], data: str | None) -> _Request:
    address = _split(url)
    body = None if data is None else _contents("--data", data)
    method = ("GET" if body is None else "POST") if method is None else method
    if not TOKEN.fullmatch(method):
        raise RateboundError("option -X: expected a method like GET, POST or DELETE")
    headers = {"Accept": "*/*", "User-Agent": f"ratebound/{__version__}"}
    if body is not None:
        is_json = body.lstrip()[:1] in (b"{", b"[")
        headers["Content-Type"] = "application/json" if is_json else "application/x-www-form-urlencoded"
    given = _given_headers(lines)
    taken = {name.lower() for name in given}
    headers = {name: value for name, value in headers.items() if name.lower() not in taken} | given
    target = quote(address.path or "/", safe="/%:=&~+!$,;'@()*")
    if address.query:
        target += "?" + quote(address.query, safe="/%:=&~+!$,;'@()*?[]")
    path = "/".join("…" if PATH_TOKEN.fullmatch(part) else part for part in address.path.split("/"))
    shown_url = shown(f"{address.scheme}://{address.netloc}{path}")
    return _Request(method, address, target, headers, body, shown_url, _secrets(address, given))


def _split(url: str) -> SplitResult:
    expected = "expected a URL like https://api.example.com/v1/items"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RateboundError(f"cannot read the URL: {expected}, with a host and a port that are valid") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RateboundError(f"cannot read the URL: {expected}")
    if port == 0 or not re.fullmatch(r"[^\s\x00-\x20\x7f]{1,255}", parts.hostname):
        raise RateboundError(f"cannot read the URL: {expected}, with a host and a port that are valid")
    if "@" in parts.netloc:
        raise RateboundError("the URL has a user or a password: give them in a header field instead, -H @FILE")
    return parts


def _given_headers(lines: Sequence[str]) -> dict[str, str]:
    """Return the fields of the request. Messages name a field, and never hold its value."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith("@"):
            text = _contents("-H", line).decode("utf-8", "replace")
            entries = [entry for entry in text.splitlines() if entry.strip()]
        else:
            entries = [line]
        for entry in entries:
            name, colon, value = entry.partition(":")
            value = value.strip(" \t")
            if not colon or not TOKEN.fullmatch(name):
                raise RateboundError("option -H: expected 'Name: value', for example -H 'Accept: application/json'")
            if not VALUE.fullmatch(value):
                raise RateboundError(f"option -H: the value of {name} has characters that no header field may have")
            if name.lower() in ("content-length", "transfer-encoding"):
                raise RateboundError(f"option -H: {name} is set from the data of the request")
            found[name] = value
    return found


def _contents(option: str, text: str) -> bytes:
    """Return text as bytes, or the contents of the file that it names after an @."""
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    try:
        if text == "@-":
            found = sys.stdin.buffer.read(MOST_INPUT + 1)
        else:
            with Path(text[1:]).open("rb") as file:
                found = file.read(MOST_INPUT + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise RateboundError(f"option {option}: {shown(text[1:])}: {why}") from None
    if len(found) > MOST_INPUT:
        raise RateboundError(f"option {option}: {shown(text[1:])}: expected at most {MOST_INPUT:,} bytes")
    return found


def _secrets(address: SplitResult, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return what must not be printed, also if the server sends it back, the longest first.

    Values of fields and of the query count, and parts of the path that look like tokens. Numbers and plain words do
    not: hiding them would hide harmless text.
    """
    found = set()
    for value in headers.values():
        found |= {value, *value.split(" ")}
    for part in address.query.split("&"):
        value = part.partition("=")[2] or part
        found |= {value, unquote(value)}
    found |= {part for part in address.path.split("/") if PATH_TOKEN.fullmatch(part)}
    kept = {text for text in found if len(text) >= LEAST_SECRET and not PLAIN.fullmatch(text)}
    return tuple(sorted(kept, key=len, reverse=True))


def _hidden(text: str, secrets: Sequence[str]) -> str:
    """Return text without the secrets of the request, in any letter case: names of fields have none."""
    for secret in secrets:
        text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
    return text


def _tls(request: _Request, ca: str | None) -> ssl.SSLContext | None:
    if request.address.scheme != "https":
        if ca is not None:
            raise RateboundError("option --ca is for an https URL")
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # an SSLError is an OSError
        raise RateboundError(f"option --ca: {shown(str(ca))}: {error.strerror or error}") from None


def _sent(request: _Request, timeout: float, context: ssl.SSLContext | None) -> Exchanged:
    try:
        answer = exchange(
            request.address,
            method=request.method,
            target=request.target,
            headers=request.headers,
            data=request.data,
            timeout=timeout,
            context=context,
            shown=request.shown,
            wants_body=_is_wanted,
        )
    except (UnicodeError, ValueError):  # a host that no name server can know
        raise RateboundError(f"cannot read the URL: {request.shown} has no valid host") from None
    headers = [(_hidden(name, request.secrets), _hidden(value, request.secrets)) for name, value in answer.headers]
    return answer._replace(phrase=_hidden(answer.phrase, request.secrets), headers=headers)


def _is_wanted(status: int, headers: Mapping[str, str]) -> bool:
    """Return True for a body that may tell a limit. A stream of events would never end."""
    return "json" in headers.get("content-type", "").lower()


def _show(request: _Request, answer: Exchanged, advice: Advice, now: float, console: Console) -> None:
    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    phrase = f" {shown(answer.phrase)[:60]}" if answer.phrase else ""
    took = duration(round(answer.seconds * 1_000_000))
    line(f"{request.method} {request.shown}: {answer.status}{phrase}, after {took}", "bold")
    style = style_words(advice)
    if style:
        line(f"Style: {style}")
    for quota in advice.quotas:
        line(f"  {quota_words(quota, advice.style)}", "yellow" if quota.remaining == 0 else "")
    refusal = refusal_words(advice)
    if refusal:
        line(f"Refused: {refusal}.", "red")
    retry = retry_words(advice, answer.headers)
    if retry:
        line(f"Next request: {retry}." if not refusal else f"Retry: {retry}.")
    if 300 <= answer.status < 400:
        line("The answer is a redirect, which was not followed: the limits of its target may be others.")
    notes = doubts(answer.status, answer.headers, advice, now)
    if notes:
        line("Unclear:", "bold")
        for note in notes:
            line(f"  - {note}")
    lines = limit_lines(answer.headers)
    if lines:
        line("Fields:", "bold")
        for one in lines:
            line(f"  {one}", "dim")


def _show_course(answers: Sequence[tuple[Exchanged, Advice]], console: Console) -> None:
    """Print one line for each answer, and what a request has cost."""
    names = {quota.name: quota for _, advice in answers for quota in advice.quotas if quota.remaining is not None}
    for place, (answer, advice) in enumerate(answers, 1):
        left = {quota.name: quota.remaining for quota in advice.quotas}
        told = [f"{_name(names[name])} {number(left[name] or 0)}" for name in names if left.get(name) is not None]
        text = f"{place:>4}  {answer.status}  {', '.join(told)}"
        console.print(Text(text.rstrip(), style="red" if advice.refused else ""), soft_wrap=True)
    for name, quota in names.items():
        course = [one.remaining for _, advice in answers for one in advice.quotas if one.name == name]
        falls = [before - after for before, after in pairwise(course) if before and after is not None]
        costs = sorted({fall for fall in falls if fall > 0})
        if costs:
            cost = f"{costs[0]:,}" if len(costs) == 1 else f"{costs[0]:,} to {costs[-1]:,}"
            console.print(Text(f"A request costs {cost} of {_name(quota)}."), soft_wrap=True)


def _name(quota: Quota) -> str:
    return shown(quota.name or quota.unit)[:60]


def _as_json(answer: Exchanged, advice: Advice, now: float) -> dict[str, Any]:
    quotas = []
    for quota in advice.quotas:
        partition = None if quota.partition is None else base64.b64encode(quota.partition).decode()
        quotas.append({**quota._asdict(), "partition": partition})
    return {
        "status": answer.status,
        "seconds": round(answer.seconds, 6),
        **advice._asdict(),
        "quotas": quotas,
        "unclear": doubts(answer.status, answer.headers, advice, now),
        "fields": limit_lines(answer.headers),
    }
