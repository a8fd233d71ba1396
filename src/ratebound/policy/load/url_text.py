"""The text of a policy from an HTTP server, within bounds: 5 seconds in all, 5 MB, 3 redirects on the same origin.

A token is sent to the origin of the URL and to nobody else. An answer that may be a part of the text is an error: half
a policy may be valid, and limit less.
"""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from ratebound.errors import RateboundError
from ratebound.policy.load.document import SUFFIXES

SECONDS = 5.0
MOST_BYTES = 5_000_000
MOST_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
PORTS = {"http": 80, "https": 443}
CHUNK = 65536
WEB_PAGES = ("text/html", "application/xhtml+xml")
FORMATS = {
    "application/json": "json",
    "application/toml": "toml",
    "text/toml": "toml",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "text/x-yaml": "yaml",
}

TRUNCATED = "the server ended the answer before it was complete"
WEB_PAGE = "the server sends a web page, maybe to log in, and no policy: set RATEBOUND_POLICY_TOKEN, or another URL"


class FetchError(RateboundError):
    """A policy that could not be fetched.

    Args:
        kind: A word that is the same for failures that are alike.
        message: What happened, and what to do.
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Validators(NamedTuple):
    """The headers by which a server tells if a text has changed."""

    etag: str = ""
    modified: str = ""


NO_VALIDATORS = Validators()


class FetchedText(NamedTuple):
    """A text, and the validators to ask with the next time."""

    text: str
    validators: Validators


def is_url(given: object) -> bool:
    """Return True for text that begins with http:// or https://."""
    return isinstance(given, str) and given.lower().startswith(("http://", "https://"))


def split_policy_url(url: str) -> SplitResult:
    """Return the parts of a URL. Raises ValueError, without the password or the query, if it cannot be used."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError
    except ValueError:
        raise ValueError("expected a URL like https://host/policy.yaml: its host or port cannot be read") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the URL of a policy has no user and no password: put a token into the environment variable"
            " RATEBOUND_POLICY_TOKEN"
        )
    if not is_url(url) or not parts.hostname:
        raise ValueError(f"expected a URL like https://host/policy.yaml, not {shown_url(url)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{shown_url(url)}: write blanks and special characters in a URL as %20 …")
    return parts


def shown_url(url: str) -> str:
    """Return a URL for messages, without its query: that may hold a secret."""
    place, mark, _ = url.partition("?")
    return place.partition("#")[0] + ("?…" if mark else "")


def format_of_path(path: str) -> str | None:
    """Return the format that the end of a path or of a file's name stands for; None if it does not stand for one."""
    return SUFFIXES.get(PurePosixPath(path).suffix.lower())


def fetch_text(
    url: str,
    format: str,
    *,
    token: str = "",
    validators: Validators = NO_VALIDATORS,
    seconds: float = SECONDS,
) -> FetchedText | None:
    """Return the text of a URL; None if the server says that it has not changed. Raises FetchError.

    The whole exchange takes `seconds` at most, the look-up of the host's name included. `format` is yaml, json or toml.
    """
    fetching = _Fetching(url, format, token, validators, seconds)
    threading.Thread(target=fetching.run, name="ratebound fetch", daemon=True).start()
    if not fetching.is_done.wait(seconds):
        fetching.abandon()
        raise FetchError("slow", f"{shown_url(url)}: there was no complete answer within {seconds:g} s")
    if fetching.error is not None:
        raise fetching.error
    return fetching.found


class _Fetching:
    """One exchange with a server, in a thread of its own: nothing else bounds the look-up of a name, or a server that
    sends a byte each second."""

    def __init__(self, url: str, format: str, token: str, validators: Validators, seconds: float) -> None:
        self.is_done = threading.Event()
        self.found: FetchedText | None = None
        self.error: FetchError | None = None
        self._url = url
        self._format = format
        self._validators = validators
        self._seconds = seconds
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._is_abandoned = False
        self._headers = {
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "User-Agent": "ratebound",
            "Connection": "close",
        }
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        if validators.etag:
            self._headers["If-None-Match"] = validators.etag
        if validators.modified:
            self._headers["If-Modified-Since"] = validators.modified

    def run(self) -> None:
        """Fetch, and note the text or the error."""
        shown = shown_url(self._url)
        try:
            self.found = self._fetch(self._url)
        except FetchError as error:
            self.error = FetchError(error.kind, f"{shown}: {error}")
        except ssl.SSLCertVerificationError as error:
            self.error = FetchError("certificate", f"{shown}: its certificate is not valid: {error.verify_message}")
        except TimeoutError:
            self.error = FetchError("slow", f"{shown}: there was no complete answer within {self._seconds:g} s")
        except OSError as error:
            reason = error.strerror or error
            told = f"no policy could be fetched: {reason}. Check the address, and that its server runs"
            self.error = FetchError("unreachable", f"{shown}: {told}")
        except http.client.IncompleteRead:
            self.error = FetchError("truncated", f"{shown}: {TRUNCATED}")
        except (http.client.HTTPException, ValueError) as error:
            told = f"the server does not speak HTTP as expected: {type(error).__name__}"
            self.error = FetchError("garbage", f"{shown}: {told}")
        except Exception as error:  # else the caller would wait for the whole time
            self.error = FetchError("failed", f"{shown}: {error!r}")
        finally:
            self._end()
            self.is_done.set()

    def abandon(self) -> None:
        """End the exchange: its thread must not read for ever from a server that is slow on purpose."""
        self._is_abandoned = True
        self._close()

    def _end(self) -> None:
        """Close the response, in the thread that reads it, and the connection."""
        if self._response is not None:
            self._response.close()
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads, which `close` does not
            self._socket.close()

    def _fetch(self, url: str) -> FetchedText | None:
        origin = _origin(split_policy_url(url))
        for _ in range(MOST_REDIRECTS + 1):
            response = self._ask(url)
            if response.status not in REDIRECTS:
                return self._read(response)
            url = urljoin(url, response.headers.get("Location") or "")
            try:
                target = _origin(split_policy_url(url))
            except ValueError:
                target = ()
            if target != origin:
                raise FetchError(
                    "redirect",
                    f"the server redirects to another origin, which is not followed: {shown_url(url)[:200]!r}. Use that"
                    " URL if you trust it",
                )
            self._end()
        raise FetchError("redirect", f"the server redirects more than {MOST_REDIRECTS} times")

    def _ask(self, url: str) -> http.client.HTTPResponse:
        parts = split_policy_url(url)
        host = parts.hostname or ""
        connection = http.client.HTTPConnection(host, parts.port, timeout=self._seconds)
        if parts.scheme.lower() == "https":
            tls = ssl.create_default_context()
            connection = http.client.HTTPSConnection(host, parts.port, timeout=self._seconds, context=tls)
        connection.connect()
        self._socket = connection.sock  # the connection forgets it when it has read the headers
        if self._is_abandoned:
            raise TimeoutError
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers=self._headers)
        self._response = connection.getresponse()
        return self._response

    def _read(self, response: http.client.HTTPResponse) -> FetchedText | None:
        headers = response.headers
        if response.status == 304 and any(self._validators):
            return None
        if response.status != 200:
            hint = ": set RATEBOUND_POLICY_TOKEN" if response.status in (401, 403) else ""
            raise FetchError(f"status {response.status}", f"the server answers with status {response.status}{hint}")
        kind = headers.get_content_type() if "Content-Type" in headers else ""
        if kind in WEB_PAGES:
            raise FetchError("web page", WEB_PAGE)
        if FORMATS.get(kind, self._format) != self._format:
            expected = f"expected {self._format}, by the end of the path or of the copy's name"
            raise FetchError("format", f"the server sends {kind}: {expected}")
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise FetchError("encoding", f"the server sends {encoding[:40]!r}, which was not asked for")
        text = self._text(response)
        if text.lstrip()[:15].lower().startswith(("<!doctype html", "<html")):
            raise FetchError("web page", WEB_PAGE)
        return FetchedText(text, Validators(headers.get("ETag", "").strip(), headers.get("Last-Modified", "").strip()))

    def _text(self, response: http.client.HTTPResponse) -> str:
        if response.length is None and not response.chunked:
            raise FetchError("no length", "the server does not say how long the policy is, so it may be a part of it")
        too_large = FetchError("too large", f"the policy has more than {MOST_BYTES // 1_000_000} MB")
        if (response.length or 0) > MOST_BYTES:
            raise too_large
        read = bytearray()
        while chunk := response.read(CHUNK):
            read += chunk
            if len(read) > MOST_BYTES:
                raise too_large
        if response.length:
            raise FetchError("truncated", TRUNCATED)
        try:
            return read.decode("utf-8")
        except UnicodeDecodeError:
            raise FetchError("not text", "the policy is not text in UTF-8") from None


def _origin(parts: SplitResult) -> tuple[str, str, int] | tuple[()]:
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or PORTS[scheme]
