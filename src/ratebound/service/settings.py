"""The settings of the service: one table, which makes the options, the environment variables and the settings file.

An option wins over the environment, the environment over the file, and the file over the default. All mistakes are
reported at once, each with its source. A secret is never part of a message, and never an option: every user of a host
can read the options of its processes.
"""

import ipaddress
import math
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ratebound.admin.calls import Role
from ratebound.errors import RateboundError
from ratebound.http.client_ip import Proxies
from ratebound.ledger import Ledger
from ratebound.ledger.client_names import Way
from ratebound.ledger.periods import BUCKETS
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.load.document import parse
from ratebound.policy.load.url_text import is_url
from ratebound.policy.problem import PolicyError
from ratebound.policy.runtime.fetched_policy import kept_file
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.check import LOCAL_PROXIES
from ratebound.service.connections import Bounds
from ratebound.service.operator_tokens import READ, WRITE, OperatorToken, read_operator_tokens
from ratebound.service.proxied_request import AUTO, DESCRIPTIONS
from ratebound.service.reservations import MIN_SECRET
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.urls import check_storage_url

PREFIX = "RATEBOUND_"
OFF = "off"
# PostgreSQL has users without a password; elsewhere a lone word before '@' may be one.
SECRET_IN_URL = re.compile("^(?!postgres).*@|//[^@]*:[^@]*@|@.*@|secret=|password=")
LOG_LEVELS = ("debug", "info", "warning", "error")
SHORTEST_KEPT = 86_400  # seconds of usage in a ledger
LEDGER_SCHEMES = ("sqlite", "postgresql", "postgres")
Environ = Mapping[str, str]
T = TypeVar("T")


class SettingsError(RateboundError):
    """Settings that cannot be used. `mistakes` has a text for each, which names its source."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on: a host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """True for loopback and for Unix sockets: only programs of this host can connect."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_listen(text: str) -> Listen | None:
    """Return an address: 'host:port', '[::1]:port', 'port' (on loopback), ':port' (on all addresses) or 'unix:/path'.

    None for 'off'. Raises ValueError for other texts.
    """
    expected = "expected host:port, [::1]:port, a port (on loopback), :port (on all addresses), unix:/path or off"
    if text.lower() == OFF:
        return None
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or len(os.fsencode(path)) > 100 or "\0" in path:
            raise ValueError(f"{text!r} is no address: expected unix: and an absolute path of at most 100 bytes")
        return Listen(path=path)
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536):
        raise ValueError(f"{text!r} is no address: {expected}")
    if not colon:
        return Listen("127.0.0.1", int(port))
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        _check_ipv6(host, text, expected)
    elif ":" in host or not all(character.isalnum() or character in "-._" for character in host):
        raise ValueError(f"{text!r} is no address: {expected}")
    return Listen(host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0"), int(port))


def _check_ipv6(host: str, text: str, expected: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError(f"{text!r} is no address: {expected}") from None


def _text(text: str) -> str:
    return text


def _storage(text: str) -> str:
    check_storage_url(text)
    return text


def _ledger(text: str) -> str:
    if split_url(text).scheme not in LEDGER_SCHEMES:
        raise ValueError(
            f"cannot open ledger {hidden(text)}: expected sqlite:///usage.db or postgresql://HOST/DATABASE"
        )
    check_storage_url(text)
    return text


def _keep(text: str) -> str:
    if read_seconds(text) < SHORTEST_KEPT:
        raise ValueError(f"expected at least a day, for example '400 days', not {text!r}")
    return text


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 16 and least <= int(text) <= most):
            raise ValueError(f"expected a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def _seconds(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            raise ValueError(f"expected seconds from {least:g} to {most:g}, not {text!r}")
        return found

    return read


def _seconds_or_off(least: float, most: float) -> Callable[[str], float]:
    seconds = _seconds(least, most)

    def read(text: str) -> float:
        try:
            return 0.0 if text.lower() == OFF else seconds(text)
        except ValueError as error:
            raise ValueError(f"{error}; or off") from None

    return read


def _choice(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"expected one of {', '.join(names)}, not {text!r}")
        return text.lower()

    return read


def _flag(text: str) -> bool:
    return _choice("yes", "no", "true", "false", "on", "off", "1", "0")(text) in ("yes", "true", "on", "1")


def _status(text: str) -> int | None:
    return None if not text else _whole(400, 599)(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _proxies(text: str) -> tuple[str, ...]:
    try:
        Proxies(_words(text))
    except ValueError as error:  # it is written for policies, which may count hops instead
        raise ValueError(str(error).removeprefix("trusted: ").removesuffix(", or set hops")) from None
    return _words(text)


def _tokens(text: str) -> tuple[str, ...]:
    if not _words(text):
        raise ValueError("expected at least one token")
    BearerTokens(_words(text))
    return _words(text)


def _operator_tokens(role: Role) -> Callable[[str], tuple[OperatorToken, ...]]:
    def read(text: str) -> tuple[OperatorToken, ...]:
        if not _words(text):
            raise ValueError("expected at least one token")
        return read_operator_tokens(_words(text), role)

    return read


def _secrets(text: str) -> tuple[str, ...]:
    for word in _words(text):
        if len(word.encode()) < MIN_SECRET:
            raise ValueError(f"a secret must have at least {MIN_SECRET} characters; make one: openssl rand -hex 32")
    return _words(text)


def _ledger_secret(text: str) -> tuple[str, ...]:
    if len(_words(text)) != 1:
        raise ValueError("expected one secret without blanks")
    return _secrets(text)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting. `read` makes its value of a text, and raises ValueError. `default` is a text, too."""

    name: str
    read: Callable[[str], Any]
    default: str
    metavar: str
    help: str
    is_secret: bool = False  # no option, and its text is in no message

    @property
    def option(self) -> str:
        """The option of `ratebound serve`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"{PREFIX}{self.name.upper()}"


BOUNDS = Bounds()
MEGABYTE = 1024 * 1024

SETTINGS = (
    Setting(
        "policy",
        _text,
        "",
        "FILE|URL",
        "The policy file, or its URL, which decides described requests. Without one they are unlimited.",
    ),
    Setting(
        "policy_keep",
        _text,
        "",
        "FILE",
        "Where the policy of a URL is kept, for a start without its server. By default in the user's cache folder.",
    ),
    Setting(
        "policy_every", _seconds(0.1, 86400), "30", "SECONDS", "How often the policy of a URL is fetched, in seconds."
    ),
    Setting("functions", _text, "", "MODULE", "The Python module of the functions that the policy names."),
    Setting(
        "storage",
        _storage,
        "",
        "URL",
        "Where states are kept: memory://, shm://NAME, sqlite:///FILE, redis://HOST, postgresql://HOST/DATABASE,"
        " memcached://HOST. By default the storage of the policy; memory becomes shared memory of this run if there are"
        " several workers.",
    ),
    Setting(
        "ledger",
        _ledger,
        "",
        "URL",
        "Where usage is recorded for bills and audits: sqlite:///usage.db or postgresql://HOST/DATABASE. Without it"
        " nothing is recorded.",
    ),
    Setting(
        "ledger_clients",
        _choice("digest", "name"),
        "digest",
        "HOW",
        "How clients are written to the ledger: as a digest, which needs ledger_secret, or by name.",
    ),
    Setting("ledger_secret", _ledger_secret, "", "SECRET", "The secret of the digests in the ledger.", is_secret=True),
    Setting("ledger_secret_file", _text, "", "FILE", "A file with the secret of the digests in the ledger."),
    Setting(
        "ledger_every",
        _seconds(0.1, 3600),
        "5",
        "SECONDS",
        "How often usage is written to the ledger, in seconds. A crash loses at most what was counted since.",
    ),
    Setting(
        "ledger_bucket",
        _choice(*BUCKETS),
        "1 hour",
        "TIME",
        f"The spans of time in which usage is added up: {', '.join(BUCKETS)}.",
    ),
    Setting("ledger_keep", _keep, "", "TIME", "How long usage is kept, such as 400 days. By default for ever."),
    Setting("http", read_listen, "127.0.0.1:4290", "ADDRESS", "Where HTTP is served, or off."),
    Setting("grpc", read_listen, "127.0.0.1:4291", "ADDRESS", "Where gRPC is served, or off."),
    Setting("resp", read_listen, "127.0.0.1:4292", "ADDRESS", "Where RESP, the protocol of Redis, is served, or off."),
    Setting("admin", read_listen, "127.0.0.1:4293", "ADDRESS", "Where the control plane is served, or off."),
    Setting("workers", _whole(1, 512), "1", "NUMBER", "The number of processes that decide."),
    Setting("tokens", _tokens, "", "TOKENS", "The tokens of callers, separated by blanks.", is_secret=True),
    Setting("token_file", _text, "", "FILE", "A file with the tokens of callers, one in each line."),
    Setting(
        "admin_tokens",
        _operator_tokens(WRITE),
        "",
        "TOKENS",
        "The tokens of operators who may read and write, each TOKEN or NAME=TOKEN.",
        is_secret=True,
    ),
    Setting("admin_token_file", _text, "", "FILE", "A file with the tokens of operators who may read and write."),
    Setting(
        "admin_read_tokens",
        _operator_tokens(READ),
        "",
        "TOKENS",
        "The tokens of operators who may only read, each TOKEN or NAME=TOKEN.",
        is_secret=True,
    ),
    Setting("admin_read_token_file", _text, "", "FILE", "A file with the tokens of operators who may only read."),
    Setting(
        "secret",
        _secrets,
        "",
        "SECRETS",
        "The secrets that sign reservations: the first signs, all verify. The first also signs the cookies of"
        " operators. By default random for each start.",
        is_secret=True,
    ),
    Setting("secret_file", _text, "", "FILE", "A file with the secrets, one in each line."),
    Setting(
        "trusted_proxies",
        _proxies,
        " ".join(LOCAL_PROXIES),
        "RANGES",
        "The addresses of proxies that may use the check endpoint; unix for Unix sockets.",
    ),
    Setting(
        "check_headers",
        _choice(*DESCRIPTIONS),
        AUTO,
        "NAME",
        "How proxies describe a request to the check endpoint: auto, nginx, forwarded or path.",
    ),
    Setting(
        "check_denied_status",
        _status,
        "",
        "STATUS",
        "The status of denied requests at the check endpoint. By default the policy's; 403 for nginx.",
    ),
    Setting("tls_cert", _text, "", "FILE", "The certificate chain, in PEM: all listeners use TLS."),
    Setting("tls_key", _text, "", "FILE", "The private key of the certificate, in PEM."),
    Setting(
        "max_connections",
        _whole(1, 1_000_000),
        str(BOUNDS.connections),
        "NUMBER",
        "The most open connections of each worker and wire format.",
    ),
    Setting(
        "idle_timeout",
        _seconds(1, 86400),
        f"{BOUNDS.idle:g}",
        "SECONDS",
        "How long a connection may be open without a request, in seconds.",
    ),
    Setting(
        "request_timeout",
        _seconds(0.1, 3600),
        f"{BOUNDS.request:g}",
        "SECONDS",
        "How long a peer may take to send a request, or to read its answers, in seconds.",
    ),
    Setting(
        "max_head", _whole(1024, MEGABYTE), str(BOUNDS.head), "BYTES", "The longest headers of one request, in bytes."
    ),
    Setting(
        "max_body", _whole(1024, 64 * MEGABYTE), str(BOUNDS.body), "BYTES", "The longest body of one request, in bytes."
    ),
    Setting("max_batch", _whole(1, 100), str(BOUNDS.batch), "NUMBER", "The most decisions in one call."),
    Setting(
        "max_pending",
        _whole(1, 100_000),
        str(BOUNDS.pending),
        "NUMBER",
        "The most requests of one connection that are not answered yet.",
    ),
    Setting(
        "deadline",
        _seconds(0.001, 60),
        "",
        "SECONDS",
        "How long a decision may wait for the storage at most, in seconds. By default the storage's own timeout"
        " (timeout= in its URL, else 0.25), which ends a decision in any case.",
    ),
    Setting(
        "negative_hits", _flag, "no", "YES|NO", "Accept negative hits of Envoy's rate limit service, which refund."
    ),
    Setting(
        "grace", _seconds(0, 3600), "10", "SECONDS", "How long accepted requests may take after a stop, in seconds."
    ),
    Setting(
        "reload",
        _seconds_or_off(0.1, 3600),
        "1",
        "SECONDS",
        "How often the policy file is checked for changes, in seconds, or off.",
    ),
    Setting("log_format", _choice("text", "json"), "text", "FORMAT", "The format of log lines: text or json."),
    Setting(
        "log_level", _choice(*LOG_LEVELS), "info", "LEVEL", f"The lowest level that is logged: {', '.join(LOG_LEVELS)}."
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, repr=False)
class LedgerSettings:
    """The usage ledger of a service. It has no repr with fields, because the URL and the secret are secret."""

    url: str
    clients: Way
    secret: str | None
    every: float
    bucket: str
    keep: str | None

    def open(self, *, writes: bool) -> Ledger:
        """Return the ledger. Without `writes` it only answers questions."""
        return Ledger(
            self.url,
            clients=self.clients,
            secret=self.secret,
            every=self.every,
            bucket=self.bucket,
            keep=self.keep,
            writes=writes,
        )


@dataclass(frozen=True, slots=True, repr=False)
class ServiceSettings:
    """The settings of one run, checked. It has no repr with fields, because some of them are secret."""

    policy: Path | None  # of a URL: the file in which it is kept
    policy_url: str  # empty: it is a file of the operator's
    policy_every: float
    functions: str
    storage: str  # empty: the policy's
    ledger: LedgerSettings | None
    http: Listen | None
    grpc: Listen | None
    resp: Listen | None
    admin: Listen | None
    workers: int
    tokens: tuple[str, ...]
    admin_tokens: tuple[OperatorToken, ...]  # of both roles
    secrets: tuple[bytes, ...]  # empty: made at the start
    trusted_proxies: tuple[str, ...]
    check_headers: str
    check_denied_status: int | None
    tls_cert: str
    tls_key: str
    bounds: Bounds
    deadline: float | None
    negative_hits: bool
    grace: float
    reload: float  # 0: off
    log_format: str
    log_level: str

    @property
    def listens(self) -> dict[str, Listen]:
        """The addresses that are not off, by the name of their setting."""
        named = {"http": self.http, "grpc": self.grpc, "resp": self.resp, "admin": self.admin}
        return {name: listen for name, listen in named.items() if listen is not None}


def read_settings(
    options: Mapping[str, str], *, environ: Environ | None = None, file: str | None = None
) -> ServiceSettings:
    """Return the settings, read from options, the environment and a settings file (also RATEBOUND_SETTINGS).

    `options` has the texts of the options that were given, by the name of the setting. Raises SettingsError with every
    mistake.
    """
    environ = os.environ if environ is None else environ
    reader = _Reader()
    file = file or environ.get(f"{PREFIX}SETTINGS") or None
    written = {} if file is None else reader.file(file)
    for setting in SETTINGS:
        if setting.name in options:
            reader.take(setting, options[setting.name], f"option {setting.option}")
        elif environ.get(setting.variable):
            reader.take(setting, environ[setting.variable], f"environment variable {setting.variable}")
        elif setting.name in written:
            text, source = written[setting.name]
            reader.take(setting, text, source)
        else:
            reader.values[setting.name] = setting.read(setting.default) if setting.default else None
    for name in ("storage", "ledger"):
        if SECRET_IN_URL.search(options.get(name, "")):
            reader.mistakes.append(
                f"option --{name}: every user of this host can read options. Put a URL with a password or a secret into"
                f" the environment variable {PREFIX}{name.upper()} or into the settings file"
            )
    return reader.settings()


class _Reader:
    """A reader of settings that notes each mistake and its source."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.mistakes: list[str] = []

    def take(self, setting: Setting, text: str, source: str) -> None:
        """Read the text of a setting."""
        self.sources[setting.name] = source
        self.values[setting.name] = setting.read(setting.default) if setting.default else None
        try:
            if not text.strip() and setting.name != "trusted_proxies":  # none may be trusted
                raise ValueError(f"expected {setting.metavar}, not an empty text; leave it out for the default")
            self.values[setting.name] = setting.read(text.strip())
        except ValueError as error:
            self.mistakes.append(f"{source}: {error}")

    def file(self, path: str) -> dict[str, tuple[str, str]]:
        """Return the texts of a settings file with their sources, by the names of their settings."""
        suffix = Path(path).suffix.lower()
        format = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}.get(suffix)
        if format is None:
            self.mistakes.append(f"{path}: expected a settings file that ends in .toml, .yaml, .yml or .json")
            return {}
        try:
            tree, lines = parse(Path(path).read_text("utf-8"), format)
        except (OSError, UnicodeDecodeError) as error:
            self.mistakes.append(f"{path}: cannot read the settings: {getattr(error, 'strerror', None) or error}")
            return {}
        except PolicyError as error:
            self.mistakes += str(PolicyError(error.problems, path)).splitlines()
            return {}
        if tree is None:
            return {}
        if not isinstance(tree, Mapping):
            self.mistakes.append(f"{path}: expected settings like `workers: 2`, by their names")
            return {}
        found = {}
        for name, value in tree.items():
            text = _as_text(value)
            line = lines.get((name,))
            source = f"{path}: {name}" if line is None else f"{path}:{line}: {name}"
            if name not in BY_NAME:
                self.mistakes.append(f"{source}: there is no such setting; expected one of {', '.join(BY_NAME)}")
            elif text is None:
                self.mistakes.append(f"{source}: expected a text, a number, yes or no, or a list of texts")
            else:
                found[str(name)] = text, source
        return found

    def lines_of(self, name: str, read: Callable[[str], tuple[T, ...]]) -> tuple[T, ...]:
        """Return the secrets in the file that a setting names."""
        path = self.values[name]
        if not path:
            return ()
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ValueError("expected a regular file")
            found = read(" ".join(Path(path).read_text("utf-8").split()))
            if not found:
                raise ValueError("the file is empty")
        except (OSError, ValueError) as error:
            reason = "it is not text" if isinstance(error, UnicodeDecodeError) else error
            self.mistakes.append(f"{self.sources[name]}: {path}: {getattr(error, 'strerror', None) or reason}")
            return ()
        return found

    def settings(self) -> ServiceSettings:
        """Return the settings, after the checks that need several of them. Raises SettingsError."""
        values = self.values
        tokens = (values["tokens"] or ()) + self.lines_of("token_file", _tokens)
        admin_tokens = self._admin_tokens()
        secrets = (values["secret"] or ()) + self.lines_of("secret_file", _secrets)
        self._check_addresses(bool(tokens), bool(admin_tokens))
        self._check_tls()
        policy = self._policy()
        ledger = self._ledger()
        storage = values["storage"] or ""
        if values["workers"] > 1 and storage and split_url(storage).scheme == "memory":
            self.mistakes.append(
                f"{self.sources['storage']}: {hidden(storage)} is not shared between {values['workers']} workers: leave"
                " it out for shared memory of this run, or use shm://NAME, sqlite:///FILE or redis://HOST"
            )
        if self.mistakes:
            raise SettingsError(self.mistakes)
        return ServiceSettings(
            policy=policy,
            policy_url=values["policy"] if is_url(values["policy"]) else "",
            policy_every=values["policy_every"],
            functions=values["functions"] or "",
            storage=storage,
            ledger=ledger,
            http=values["http"],
            grpc=values["grpc"],
            resp=values["resp"],
            admin=values["admin"],
            workers=values["workers"],
            tokens=tokens,
            admin_tokens=admin_tokens,
            secrets=tuple(secret.encode() for secret in secrets),
            trusted_proxies=values["trusted_proxies"],
            check_headers=values["check_headers"],
            check_denied_status=values["check_denied_status"],
            tls_cert=values["tls_cert"] or "",
            tls_key=values["tls_key"] or "",
            bounds=Bounds(
                connections=values["max_connections"],
                idle=values["idle_timeout"],
                request=values["request_timeout"],
                head=values["max_head"],
                body=values["max_body"],
                batch=values["max_batch"],
                pending=values["max_pending"],
            ),
            deadline=values["deadline"],
            negative_hits=bool(values["negative_hits"]),
            grace=values["grace"],
            reload=values["reload"],
            log_format=values["log_format"],
            log_level=values["log_level"],
        )

    def _admin_tokens(self) -> tuple[OperatorToken, ...]:
        writing = (self.values["admin_tokens"] or ()) + self.lines_of("admin_token_file", _operator_tokens(WRITE))
        reading = self.values["admin_read_tokens"] or ()
        reading += self.lines_of("admin_read_token_file", _operator_tokens(READ))
        found = tuple(dict.fromkeys((*writing, *reading)))
        if len({one.token for one in found}) < len(found):
            self.mistakes.append(
                "admin_tokens and admin_read_tokens: two operators or two roles have the same token. Make a token for"
                " each: openssl rand -hex 32"
            )
        return found

    def _ledger(self) -> LedgerSettings | None:
        """Return the settings of the usage ledger; None if there is none."""
        values = self.values
        secret = (values["ledger_secret"] or ()) + self.lines_of("ledger_secret_file", _ledger_secret)
        if not values["ledger"]:
            return None
        if len(secret) > 1:
            self.mistakes.append("ledger_secret and ledger_secret_file are both set: set one of them")
        if values["ledger_clients"] == "digest" and not secret:
            self.mistakes.append(
                f"{self.sources['ledger']}: clients are written as digests, which need a secret. Set"
                f" {BY_NAME['ledger_secret'].variable} or {BY_NAME['ledger_secret_file'].option} (make one: openssl"
                " rand -hex 32), or set ledger_clients to name"
            )
        return LedgerSettings(
            url=values["ledger"],
            clients=values["ledger_clients"],
            secret=secret[0] if secret else None,
            every=values["ledger_every"],
            bucket=values["ledger_bucket"],
            keep=values["ledger_keep"],
        )

    def _policy(self) -> Path | None:
        """Return the policy file, or the file in which the policy of a URL is kept."""
        given, keep = self.values["policy"], self.values["policy_keep"]
        if keep and not is_url(given):
            self.mistakes.append(f"{self.sources['policy_keep']}: it is for a policy from a URL: leave it out")
        if not is_url(given):
            return Path(given) if given else None
        try:
            return kept_file(given, keep)
        except ValueError as error:
            self.mistakes.append(f"{self.sources['policy']}: {error}: set policy_keep or policy")
            return None

    def _check_addresses(self, has_tokens: bool, has_admin_tokens: bool) -> None:
        if self.values["http"] is None and self.values["grpc"] is None and self.values["resp"] is None:
            self.mistakes.append("http, grpc and resp are all off: nothing would be served")
        for name in ("http", "grpc", "resp", "admin"):
            listen = self.values[name]
            known = has_admin_tokens if name == "admin" else has_tokens
            if listen is None or listen.is_local or known:
                continue
            which = "admin_tokens" if name == "admin" else "tokens"
            one_file = BY_NAME["admin_token_file" if name == "admin" else "token_file"]
            self.mistakes.append(
                f"{self.sources[name]}: {listen} can be reached from other hosts, and no {which} are set. Set"
                f" {BY_NAME[which].variable} or {one_file.option} (make a token: openssl rand -hex 32), or listen on"
                " loopback"
            )

    def _check_tls(self) -> None:
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            if self.values[name] and not self.values[other]:
                self.mistakes.append(f"{self.sources[name]}: {other} is missing: TLS needs both")


def _as_text(value: object) -> str | None:
    """Return a value of a settings file as the text that an option would have. None if it has no such form."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(one, str | int) and not isinstance(one, bool) for one in value):
        return " ".join(str(one) for one in value)
    return None
