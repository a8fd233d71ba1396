"""The policy of a URL, and the copy of its last good text on disk.

The copy is an ordinary policy file. A text replaces it only after it was checked, by one rename. So a program that
reads the file never sees a broken policy because of the server, and starts without the server. A second file beside it
has the server's validators with a digest of the text that they are for: a digest that does not match means that the
whole text is asked for. The time of this second file says when the server last confirmed the copy.
"""

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratebound.errors import RateboundError
from ratebound.policy.load.loader import read_policy
from ratebound.policy.load.url_text import (
    NO_VALIDATORS,
    SECONDS,
    FetchedText,
    FetchError,
    Validators,
    fetch_text,
    format_of_path,
    shown_url,
    split_policy_url,
)
from ratebound.policy.model.policy import Policy
from ratebound.policy.problem import PolicyError, shown

log = logging.getLogger("ratebound")

TOKEN_VARIABLE = "RATEBOUND_POLICY_TOKEN"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class FetchedPolicy:
    """The policy of a URL, kept in the file `keep`.

    `functions` are those that the policy may name: it can import none. `fetch` asks the server once. `error` is why the
    last fetch failed, or None. The token is read from the environment variable RATEBOUND_POLICY_TOKEN.

    Raises ValueError if the URL or the name of the file cannot be used.
    """

    def __init__(
        self,
        url: str,
        keep: str | os.PathLike[str] | None = None,
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        environ: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self.url = url
        self.shown = shown_url(url)
        self.keep = kept_file(url, keep)
        self.error: RateboundError | None = None
        self._format = format_of_path(self.keep.name) or ""
        self.functions = GivenFunctions({} if functions is None else functions)
        self._environ = environ
        self._seconds = seconds
        self._told: dict[str, str] = {}  # failures that were logged since the last success, by kind

    @property
    def confirmed(self) -> datetime | None:
        """The time when the server last confirmed that the copy is its policy; None if it never did."""
        at = confirmed_at(self.keep)
        return None if at is None else datetime.fromtimestamp(at, UTC)

    def fetch(self) -> bool:
        """Ask the server, and replace the copy if the policy has changed. Return False if that fails: then the copy
        stays, and `error` says why. A failure is logged once for each kind, and once more when it is over."""
        try:
            self.attempt()
        except Exception as error:  # whatever it is, the old policy must stay in force, and say so
            known = error if isinstance(error, RateboundError) else FetchError("failed", f"{self.shown}: {error!r}")
            if self._is_new(known):
                log.error("the policy cannot be fetched; the last good one stays in force:\n%s", known)
            return False
        if self.error is not None:
            log.warning("the policy can be fetched again from %s", self.shown)
        self.error = None
        self._told.clear()
        return True

    def attempt(self) -> None:
        """Do the same without the log. Raises FetchError, or PolicyError for a text that is no policy."""
        kept = self._kept_text()
        known = self._notes()
        is_known = kept is not None and known.get("url") == _digest(self.url) and known.get("text") == _digest(kept)
        validators = Validators(str(known.get("etag", "")), str(known.get("modified", "")))
        found = self._asked(validators if is_known else NO_VALIDATORS)
        try:
            if found is None:
                os.utime(_notes_file(self.keep))
                return
            if found.text != kept:
                self._checked(found.text)
                _replace(self.keep, found.text)
            notes = {"url": _digest(self.url), "text": _digest(found.text), **found.validators._asdict()}
            _replace(_notes_file(self.keep), json.dumps(notes))
        except OSError as error:
            reason = error.strerror or error
            raise FetchError("cannot keep", f"{self.keep}: cannot keep a copy of the policy: {reason}") from None

    def read(self) -> Policy:
        """Return the policy that the server has now, and leave the copy as it is. Raises FetchError or PolicyError."""
        found = self._asked(NO_VALIDATORS)
        assert found is not None  # without validators there is no 304
        return self._checked(found.text)

    def _asked(self, validators: Validators) -> FetchedText | None:
        return fetch_text(self.url, self._format, token=_token(), validators=validators, seconds=self._seconds)

    def _checked(self, text: str) -> Policy:
        return read_policy(text, format=self._format, file=self.shown, functions=self.functions, environ=self._environ)

    def start(self) -> None:
        """Fetch for the first time. If that fails, and there is a copy, say loudly that it is used. Raises FetchError
        or PolicyError if there is none."""
        if self.risk:
            log.warning(self.risk)
        try:
            self.attempt()
        except (FetchError, PolicyError) as error:
            log.error(self.use_copy(error))

    @property
    def risk(self) -> str:
        """A warning, if the URL is unsafe; else empty."""
        if self.url.lower().startswith("https:") or split_policy_url(self.url).hostname in LOCAL_HOSTS:
            return ""
        return f"the policy is fetched from {self.shown} without TLS: anybody on the way can change it. Use https"

    def use_copy(self, error: RateboundError) -> str:
        """Note that the copy is used because of an error, and return a message for the log. Raises the error if there
        is no copy, or if it is of another URL."""
        known = self._notes()
        if self._kept_text() is None or known.get("url", _digest(self.url)) != _digest(self.url):
            raise error
        self._is_new(error)
        since = self.confirmed
        told = "" if since is None else f", which the server last confirmed at {since:%Y-%m-%d %H:%M:%S} UTC"
        return f"the policy cannot be fetched, so the copy in {self.keep} is used{told}:\n{error}"

    def _is_new(self, error: RateboundError) -> bool:
        """Note an error. Return True unless one of its kind was noted since the last success."""
        self.error = error
        is_fetched = not isinstance(error, FetchError)
        kind = "invalid" if is_fetched else getattr(error, "kind", "")
        detail = str(error) if is_fetched else ""  # another mistake in the policy is worth another line
        is_new = self._told.get(kind) != detail
        self._told[kind] = detail
        return is_new

    def _kept_text(self) -> str | None:
        try:
            return self.keep.read_bytes().decode()  # with the ends of lines that the server has sent
        except (OSError, UnicodeDecodeError):
            return None

    def _notes(self) -> Mapping[str, Any]:
        try:
            found = json.loads(_notes_file(self.keep).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


class GivenFunctions(Mapping[str, Callable[..., Any]]):
    """The functions that a program gives to a policy. Others are refused, where a file of the program's own could
    import them: a policy server must not choose which code runs."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions

    def __contains__(self, name: object) -> bool:
        return name in self._functions or (isinstance(name, str) and ":" in name)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name in self._functions:
            return self._functions[name]
        raise ValueError(
            f"{shown(name)} would be imported, and a policy from a URL cannot import: give the function to the policy,"
            " with functions={…} or --functions MODULE, and write its name alone"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def kept_file(url: str, keep: str | os.PathLike[str] | None = None) -> Path:
    """Return the file in which the policy of a URL is kept: `keep`, or one in the user's cache folder.

    Raises ValueError if the URL cannot be used, or if neither of them ends as a policy file does.
    """
    parts = split_policy_url(url)
    format = format_of_path(parts.path)
    if keep is not None:
        kept = format_of_path(os.fspath(keep))
        if kept is None or (format is not None and kept != format):
            expected = f"of the format {format}" if format else "that ends in .yaml, .yml, .json or .toml"
            raise ValueError(f"expected a file to keep the policy in {expected}, not {os.fspath(keep)!r}")
        return Path(keep)
    if format is None:
        raise ValueError(
            f"{shown_url(url)}: expected a path that ends in .yaml, .yml, .json or .toml, or a file with such a name to"
            " keep the policy in"
        )
    # systemd sets the first one for a service with CacheDirectory=
    home = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0] or os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    except RuntimeError:
        raise ValueError("this user has no home folder: name the file to keep the policy in") from None
    return folder / "ratebound" / f"policy-{_digest(url)[:16]}.{format}"


def confirmed_at(keep: Path) -> float | None:
    """Return when the server last confirmed the policy in a file, in seconds since 1970; None if it never did."""
    try:
        return os.stat(_notes_file(keep)).st_mtime
    except OSError:
        return None


def age_of(keep: Path) -> float | None:
    """Return the seconds since the server last confirmed the policy in a file; None if it never did."""
    at = confirmed_at(keep)
    return None if at is None else max(0.0, time.time() - at)


def _token() -> str:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise FetchError("token", f"{TOKEN_VARIABLE} is no token: expected letters, digits and signs without blanks")
    return token


def _notes_file(keep: Path) -> Path:
    return keep.with_name(f"{keep.name}.fetched")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _replace(path: Path, text: str) -> None:
    """Write a file that only this user can read: others see the old text or the new one, never a part. Raises
    OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(opened, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(opened)
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
