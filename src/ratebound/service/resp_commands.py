"""The commands of the RESP wire format: limits, a policy's decisions, and what Redis clients send by themselves.

`CL.THROTTLE` has the arguments and the answer of redis-cell. The `RB.` commands are ours: a map in RESP3, and in RESP2
the same names and values in one flat array. Their waits are told twice. `retry_after` is in whole seconds, as
Retry-After is, and `retry_after_ms` in milliseconds for callers that sleep. Both are rounded up: a caller that waits so
long is never too early.
"""

import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from ratebound import __version__
from ratebound.arguments import group_of
from ratebound.clock import SECOND
from ratebound.decision import Decision, Plan
from ratebound.errors import InvalidLimit, RateboundError, StorageError
from ratebound.http import parse_address
from ratebound.http.header_plan import Pairs
from ratebound.limit import MAX_COUNT, MAX_PERIOD, Group, Limit
from ratebound.policy import RequestView, Verdict
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.engine import MAX_LIMITS_TEXT, SHORT_LIMITS_TEXT, Engine, plan_of
from ratebound.usage import usage_ask
from ratebound.web.verdict_response import told_decision, verdict_response

log = logging.getLogger("ratebound.service")

RespAnswer = bytes | Coroutine[Any, Any, bytes]
Ask = Callable[[Any], Coroutine[Any, Any, Any]]  # of the engine
Value = bytes | str | int | None | Sequence[tuple[str, Any]]
Told = list[tuple[str, Any]]  # names and values of an answer, in order

REDIS_VERSION = "7.4.0"  # the version whose commands clients may expect
MAX_KEY = 8192  # bytes
MAX_SHOWN = 128  # characters of what a caller sent, in an error
MILLISECOND = 1000
NUMBER = re.compile(rb"-?[0-9]{1,19}")
OK = b"+OK\r\n"
NULL = {2: b"$-1\r\n", 3: b"_\r\n"}
KNOWN = "This is Ratebound, which knows CL.THROTTLE, RB.HIT, RB.PEEK, RB.RESET and RB.DECIDE"
NO_AUTH = b"-NOAUTH Authentication required.\r\n"
NO_HELLO = (
    b"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user>"
    b" <pass> option can be used to authenticate the client and select the RESP protocol version at the same time\r\n"
)
WRONG_PASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
NO_PASS_NEEDED = (
    b"-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration"
    b" is correct?\r\n"
)
DECISION_FIELDS = (
    "allowed",
    "limit",
    "remaining",
    "retry_after",
    "retry_after_ms",
    "reset_after",
    "reset_after_ms",
    "delay_ms",
    "name",
    "degraded",
)
THROTTLE_USAGE = "Usage: CL.THROTTLE <key> <max_burst> <count per period> <period> [<quantity>]"
HIT_USAGE = "Usage: {} <key> <limits> [COST <n>] [VALUES <name> <value> ...]"
RESET_USAGE = "Usage: RB.RESET <key> <limits>"
DECIDE_USAGE = (
    "Usage: RB.DECIDE <method> <path> [PEER <address>] [USER <id>] [HOST <host>] [SCHEME <scheme>] [QUERY <query>]"
    " [HEADER <name> <value>] ..."
)


class RespSession:
    """The state of one connection, as its commands have set it. `protocol` is 2 or 3."""

    __slots__ = ("id", "is_allowed", "is_ending", "name", "protocol")

    def __init__(self, number: int, is_allowed: bool) -> None:
        self.id = number
        self.is_allowed = is_allowed  # it has given a token, or needs none
        self.is_ending = False  # after the answer to QUIT
        self.name = b""
        self.protocol = 2


class RespCommandFacts(NamedTuple):
    """A command as COMMAND describes it. `arity` counts the name; it is negative if there may be more arguments."""

    name: str
    arity: int
    flags: tuple[str, ...]
    key: int  # the position of the key; 0 if there is none
    summary: str


FACTS = (
    RespCommandFacts("cl.throttle", -5, ("write", "fast"), 1, "Spends a token bucket, as redis-cell does."),
    RespCommandFacts("rb.hit", -3, ("write", "fast"), 1, "Spends limits if all of them allow it."),
    RespCommandFacts("rb.peek", -3, ("readonly", "fast"), 1, "Says what RB.HIT would answer. Changes nothing."),
    RespCommandFacts("rb.reset", 3, ("write", "fast"), 1, "Forgets what a key has spent of limits."),
    RespCommandFacts("rb.decide", -3, ("write", "fast"), 0, "Decides a described request by the policy."),
    RespCommandFacts("auth", -2, ("noscript", "fast", "no_auth"), 0, "Gives a token."),
    RespCommandFacts("client", -2, ("noscript",), 0, "Names the connection, or says its id."),
    RespCommandFacts("command", -1, ("loading", "stale"), 0, "Describes the commands."),
    RespCommandFacts("echo", 2, ("fast",), 0, "Returns its argument."),
    RespCommandFacts("hello", -1, ("noscript", "fast", "no_auth"), 0, "Chooses RESP2 or RESP3."),
    RespCommandFacts("info", -1, ("loading", "stale"), 0, "Describes the server."),
    RespCommandFacts("ping", -1, ("fast",), 0, "Returns PONG, or its argument."),
    RespCommandFacts("quit", -1, ("fast", "no_auth"), 0, "Closes the connection."),
    RespCommandFacts("reset", 1, ("fast", "no_auth"), 0, "Forgets the name, the token and the protocol."),
    RespCommandFacts("select", 2, ("fast",), 0, "Accepts database 0, the only one."),
)


# What commands do to states. Those that do the same may be answered side by side. Others wait for each other: a peek
# must see what the commands before it have spent, and a reset must forget it.
SPENDS, PEEKS, RESETS = 1, 2, 3
_EFFECTS = {b"cl.throttle": SPENDS, b"rb.hit": SPENDS, b"rb.decide": SPENDS, b"rb.peek": PEEKS, b"rb.reset": RESETS}


def effect_of(command: list[bytes]) -> int:
    """Return what a command does to states; 0 if it touches none."""
    name = command[0].lower()
    if name == b"cl.throttle" and len(command) == 6 and not command[5].strip(b"-0"):  # a quantity of 0
        return PEEKS
    return _EFFECTS.get(name, 0)


class RespCommands:
    """Answers the commands of all connections. `tokens` are those that AUTH accepts."""

    def __init__(self, engine: Engine, tokens: BearerTokens) -> None:
        self._engine = engine
        self._tokens = tokens
        self._numbers = count(1)
        commands: dict[str, Callable[[RespSession, list[bytes]], RespAnswer]] = {
            "cl.throttle": self._throttle,
            "rb.hit": self._hit,
            "rb.peek": self._peek,
            "rb.reset": self._reset,
            "rb.decide": self._decide,
            "auth": self._auth,
            "client": self._client,
            "command": self._command,
            "echo": self._echo,
            "hello": self._hello,
            "info": self._info,
            "ping": self._ping,
            "quit": self._quit,
            "reset": self._reset_session,
            "select": self._select,
        }
        # As clients usually write them; other spellings are looked up in lower case.
        self._commands = {spelled.encode(): run for name, run in commands.items() for spelled in (name, name.upper())}
        self._without_token = {self._auth, self._hello, self._quit, self._reset_session}

    def new_session(self) -> RespSession:
        """Return what is known of a new connection."""
        return RespSession(next(self._numbers), not self._tokens.is_required)

    def answer(self, session: RespSession, command: list[bytes]) -> RespAnswer:
        """Answer a command: with bytes if that needs no pause, else with a coroutine. Never raises."""
        run = self._commands.get(command[0]) or self._commands.get(command[0].lower())
        if not session.is_allowed and run not in self._without_token:
            self._tokens.log_refusal("resp", "AUTH TOKEN, the password of a Redis client")
            return NO_AUTH
        if run is None:
            return _error(f"unknown command '{_shown(command[0])}'. {KNOWN}")
        try:
            return run(session, command)
        except Exception as error:
            return _answer_to(error)

    # Limits of callers

    def _throttle(self, session: RespSession, command: list[bytes]) -> RespAnswer:
        size = len(command)
        if size == 5:
            cost = 1
        elif size == 6:
            cost = _number("quantity", command[5], 0, MAX_COUNT)
        else:
            raise _Wrong(f"CL.THROTTLE takes 4 or 5 arguments, not {size - 1}. {THROTTLE_USAGE}")
        throttle = _throttle_of(command[2], command[3], command[4])
        key = _key(command[1])
        if not cost:
            return self._written(self._engine.decider.peek, group_of(key, throttle.plan.limits, 1), throttle.peeked)
        decision = self._engine.hit_now(key, throttle.plan, cost)
        if decision is None:
            return self._written(self._engine.spend, group_of(key, throttle.plan.limits, cost), throttle.written)
        return throttle.written(decision)

    def _hit(self, session: RespSession, command: list[bytes]) -> RespAnswer:
        write = _WRITERS[session.protocol]
        if len(command) == 3:
            key, plan = _key(command[1]), _plan(command[2])
            decision = self._engine.hit_now(key, plan, 1)
            if decision is not None:
                return write(decision)
            return self._written(self._engine.spend, group_of(key, plan.limits, 1), write)
        return self._written(self._engine.spend, _asked(command, "RB.HIT"), write)

    def _peek(self, session: RespSession, command: list[bytes]) -> RespAnswer:
        return self._written(self._engine.decider.peek, _asked(command, "RB.PEEK"), _WRITERS[session.protocol])

    def _reset(self, session: RespSession, command: list[bytes]) -> RespAnswer:
        if len(command) != 3:
            raise _Wrong(f"RB.RESET takes 2 arguments, not {len(command) - 1}. {RESET_USAGE}")
        ask = usage_ask(_key(command[1]), _plan(command[2]).limits)
        return self._written(self._engine.decider.reset, (ask,), _ok)

    def _written(self, ask: Ask, group: Group, write: Callable[[Any], bytes]) -> RespAnswer:
        """Return what `write` makes of an answer of the engine, now or when it has come."""
        if self._engine.never_pauses:
            return write(self._engine.now(ask(group)))
        return _later(ask, group, write)

    # The policy

    def _decide(self, session: RespSession, command: list[bytes]) -> RespAnswer:
        view = _view(command)
        verdict = self._engine.decide_now(view)

        protocol = session.protocol  # a later HELLO may have been read when the answer comes

        def write(verdict: Verdict) -> bytes:
            return _map(protocol, _verdict_pairs(verdict, view))

        return _later(self._engine.decide, view, write) if verdict is None else write(verdict)

    # What clients send by themselves

    def _auth(self, session: RespSession, command: list[bytes]) -> bytes:
        if not 2 <= len(command) <= 3:
            raise _Wrong("wrong number of arguments for 'auth' command")
        if not self._tokens.is_required:
            return NO_PASS_NEEDED
        return self._authenticated(session, command[-1]) or OK

    def _authenticated(self, session: RespSession, token: bytes) -> bytes | None:
        """Let a session in. Return an error if the token is not valid. Names of users are ignored."""
        if self._tokens.is_required and not self._tokens.accepts(token):
            return WRONG_PASS
        session.is_allowed = True
        return None

    def _hello(self, session: RespSession, command: list[bytes]) -> bytes:
        words = iter(command[1:])
        protocol = session.protocol
        given = next(words, None)
        if given is not None:
            if given not in (b"2", b"3"):
                return b"-NOPROTO unsupported protocol version\r\n"
            protocol = int(given)
        name: bytes | None = None
        for word in words:
            option = word.upper()
            values = [next(words, None) for _ in range(2 if option == b"AUTH" else 1)]
            if option not in (b"AUTH", b"SETNAME") or values[-1] is None:
                raise _Wrong(f"syntax error in HELLO option '{_shown(word)}'")
            if option == b"SETNAME":
                name = _client_name(values[0] or b"")
            else:
                refusal = self._authenticated(session, values[-1])
                if refusal is not None:
                    return refusal
        if not session.is_allowed:
            return NO_HELLO
        session.protocol = protocol
        if name is not None:
            session.name = name
        pairs: list[tuple[str, Any]] = [
            ("server", "ratebound"),
            ("version", REDIS_VERSION),
            ("proto", protocol),
            ("id", session.id),
            ("mode", "standalone"),
            ("role", "master"),
        ]
        size = len(pairs) + 1
        head = b"%%%d\r\n" % size if protocol == 3 else b"*%d\r\n" % (2 * size)
        return head + _members(protocol, pairs) + _bulk(b"modules") + b"*0\r\n"

    def _client(self, session: RespSession, command: list[bytes]) -> bytes:
        word = command[1].upper() if len(command) > 1 else b""
        size = len(command)
        if word == b"ID" and size == 2:
            return b":%d\r\n" % session.id
        if word == b"GETNAME" and size == 2:
            return _bulk(session.name) if session.name else NULL[session.protocol]
        if word == b"SETNAME" and size == 3:
            session.name = _client_name(command[2])
            return OK
        if (word == b"SETINFO" and size == 4) or (word in (b"NO-EVICT", b"NO-TOUCH") and size == 3):
            return OK
        if word == b"INFO" and size == 2:
            return _bulk(b"id=%d name=%b resp=%d\n" % (session.id, session.name, session.protocol))
        raise _Wrong(f"unknown subcommand or wrong number of arguments for 'CLIENT {_shown(word)}'")

    def _command(self, session: RespSession, command: list[bytes]) -> bytes:
        word = command[1].upper() if len(command) > 1 else b""
        names = {name.lower().decode("latin-1") for name in command[2:]}
        chosen = [facts for facts in FACTS if not names or facts.name in names]
        if not word or word == b"INFO":
            return b"*%d\r\n%b" % (len(chosen), b"".join(map(_facts, chosen)))
        if word == b"COUNT":
            return b":%d\r\n" % len(FACTS)
        if word == b"LIST":
            return b"*%d\r\n%b" % (len(FACTS), b"".join(_bulk(facts.name.encode()) for facts in FACTS))
        if word == b"DOCS":
            docs = [(facts.name, [("summary", facts.summary), ("group", "module")]) for facts in chosen]
            return _map(session.protocol, docs)
        raise _Wrong(f"unknown subcommand 'COMMAND {_shown(word)}'")

    def _echo(self, session: RespSession, command: list[bytes]) -> bytes:
        if len(command) != 2:
            raise _Wrong("wrong number of arguments for 'echo' command")
        return _bulk(command[1])

    def _info(self, session: RespSession, command: list[bytes]) -> bytes:
        lines = (
            "# Server",
            f"redis_version:{REDIS_VERSION}",
            "redis_mode:standalone",
            f"ratebound_version:{__version__}",
            "# Persistence",
            "loading:0",
            "# Replication",
            "role:master",
        )
        return _bulk("".join(f"{line}\r\n" for line in lines).encode())

    def _ping(self, session: RespSession, command: list[bytes]) -> bytes:
        if len(command) > 2:
            raise _Wrong("wrong number of arguments for 'ping' command")
        return b"+PONG\r\n" if len(command) == 1 else _bulk(command[1])

    def _quit(self, session: RespSession, command: list[bytes]) -> bytes:
        session.is_ending = True
        return OK

    def _reset_session(self, session: RespSession, command: list[bytes]) -> bytes:
        session.is_allowed = not self._tokens.is_required
        session.name = b""
        session.protocol = 2
        return b"+RESET\r\n"

    def _select(self, session: RespSession, command: list[bytes]) -> bytes:
        if len(command) != 2:
            raise _Wrong("wrong number of arguments for 'select' command")
        return OK if command[1] == b"0" else _error("DB index is out of range")


class _Wrong(Exception):
    """A mistake in a command, in a sentence for the caller."""


class _Throttle:
    """The limit of a CL.THROTTLE, and its prepared answers: limited, limit, remaining, retry_after, reset_after."""

    __slots__ = ("_allowed", "_denied", "_full_us", "plan")

    def __init__(self, limit: Limit) -> None:
        self.plan = Plan((limit,))
        self._full_us = limit.numbers.refill_us
        self._allowed = b"*5\r\n:0\r\n:%d\r\n:%%d\r\n:-1\r\n:%%d\r\n" % limit.burst
        self._denied = b"*5\r\n:1\r\n:%d\r\n:%%d\r\n:%%d\r\n:%%d\r\n" % limit.burst

    def written(self, decision: Decision) -> bytes:
        """Return the answer."""
        row = decision.rows[0]
        reset = -(-row[3] // SECOND)
        if row[0]:
            return self._allowed % (row[1], reset)
        return self._denied % (row[1], -1 if row[2] is None else -(-row[2] // SECOND), reset)

    def peeked(self, decision: Decision) -> bytes:
        """Return the answer to a quantity of 0, which fits unless a settlement has overdrawn the bucket."""
        row = decision.rows[0]
        reset = -(-row[3] // SECOND)
        if row[3] <= self._full_us + 1:
            return self._allowed % (row[1], reset)
        return self._denied % (row[1], -(-(row[3] - self._full_us) // SECOND), reset)


@lru_cache(maxsize=4096)
def _throttle_of(max_burst: bytes, per_period: bytes, period: bytes) -> _Throttle:
    """Return the limit that the arguments of CL.THROTTLE stand for. Raises _Wrong."""
    burst = _number("max_burst", max_burst, 0, MAX_COUNT - 1) + 1
    number = _number("count per period", per_period, 1, MAX_COUNT)
    seconds = _number("period", period, 1, MAX_PERIOD // SECOND)
    try:
        return _Throttle(Limit(number, seconds * SECOND, burst, "token-bucket"))
    except InvalidLimit as error:
        raise _Wrong(str(error)) from None


async def _later(ask: Ask, asked: Any, write: Callable[[Any], bytes]) -> bytes:
    """Return what `write` makes of an answer that is to be awaited. Raises nothing but CancelledError."""
    try:
        return write(await ask(asked))
    except Exception as error:
        return _answer_to(error)


def _answer_to(error: Exception) -> bytes:
    """Return the answer for a command that failed. What is not the caller's mistake is logged, and not told."""
    if isinstance(error, StorageError):
        return b"-UNAVAILABLE The storage did not answer. Try again.\r\n"
    if isinstance(error, _Wrong | RateboundError):
        lines = str(error).splitlines()
        return _error("; ".join(line for line in lines if not line.startswith("    ")))  # without a picture
    log.error("a RESP command could not be answered; the caller got an error", exc_info=error)
    return _error("The command could not be answered.")


# Arguments


def _number(name: str, given: bytes, least: int, most: int) -> int:
    number = int(given) if NUMBER.fullmatch(given) else None
    if number is None or not least <= number <= most:
        raise _Wrong(f"{name} must be a whole number from {least} to {most}, not '{_shown(given)}'")
    return number


def _key(given: bytes) -> str:
    if len(given) > MAX_KEY:
        raise _Wrong(f"the key has {len(given)} bytes: at most {MAX_KEY} are allowed")
    try:
        return given.decode()
    except UnicodeDecodeError:
        return given.decode("utf-8", "surrogateescape")  # no two keys become one


def _plan(given: bytes) -> Plan:
    if len(given) > MAX_LIMITS_TEXT:
        raise _Wrong(f"the limits have {len(given)} bytes: at most {MAX_LIMITS_TEXT} are allowed")
    return _short_plan(given) if len(given) <= SHORT_LIMITS_TEXT else plan_of(_text("limits", given))


@lru_cache(maxsize=4096)
def _short_plan(given: bytes) -> Plan:
    return plan_of(_text("limits", given))


def _text(name: str, given: bytes) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise _Wrong(f"{name} must be UTF-8, not '{_shown(given)}'") from None


def _asked(command: list[bytes], name: str) -> Group:
    """Return the group that RB.HIT and RB.PEEK ask for."""
    if len(command) < 3:
        raise _Wrong(f"{name} takes at least 2 arguments, not {len(command) - 1}. {HIT_USAGE.format(name)}")
    cost = 1
    values: dict[str, str | int] | None = None
    at = 3
    while at < len(command):
        option = command[at].upper()
        if option == b"COST" and at + 1 < len(command):
            cost = _number("COST", command[at + 1], 1, MAX_COUNT)
            at += 2
        elif option == b"VALUES":
            pairs = command[at + 1 :]
            if not pairs or len(pairs) % 2:
                raise _Wrong(f"VALUES takes pairs of a name and a value, not {len(pairs)} words. It comes last")
            values = {_text("a name", key): _key(value) for key, value in zip(pairs[::2], pairs[1::2], strict=True)}
            break
        else:
            raise _unknown_option(command, at, HIT_USAGE.format(name))
    return group_of(_key(command[1]), _plan(command[2]).limits, cost, values)


def _unknown_option(command: list[bytes], at: int, usage: str) -> _Wrong:
    return _Wrong(f"argument {at}, '{_shown(command[at])}', is no option, or its value is missing. {usage}")


def _view(command: list[bytes]) -> RequestView:
    """Return the request that RB.DECIDE describes."""
    if len(command) < 3:
        raise _Wrong(f"RB.DECIDE takes at least 2 arguments, not {len(command) - 1}. {DECIDE_USAGE}")
    given = {b"PEER": "", b"USER": "", b"HOST": "", b"SCHEME": "http", b"QUERY": ""}
    headers: list[tuple[str, str]] = []
    at = 3
    while at < len(command):
        option = command[at].upper()
        if option == b"HEADER" and at + 2 < len(command):
            headers.append((command[at + 1].decode("latin-1").lower(), command[at + 2].decode("latin-1")))
            at += 3
        elif option in given and at + 1 < len(command):
            given[option] = _text(option.decode(), command[at + 1])
            at += 2
        else:
            raise _unknown_option(command, at, DECIDE_USAGE)
    method, path = command[1].decode("latin-1"), command[2].decode("latin-1")
    path, mark, query = path.partition("?")
    if not path.startswith("/") and path != "*":
        raise _Wrong(f"path must be '*' or begin with '/', not with '{_shown(command[2][:1])}'")
    peer = given[b"PEER"]
    if peer and parse_address(peer) is None:
        raise _Wrong(f"PEER must be an address, for example 203.0.113.7 or 2001:db8::7, not '{_shown(peer.encode())}'")
    return RequestView(
        method.upper(),
        path,
        query=query if mark else given[b"QUERY"],
        host=given[b"HOST"],
        headers=headers,
        peer=peer or None,
        scheme=given[b"SCHEME"],
        user=given[b"USER"] or None,
    )


def _client_name(name: bytes) -> bytes:
    if len(name) > MAX_SHOWN or any(not 33 <= letter <= 126 for letter in name):
        raise _Wrong("Client names cannot contain spaces, newlines or special characters.")
    return name


# Answers


def _error(text: str) -> bytes:
    """Return an error. Line breaks cannot be part of it."""
    return b"-ERR %b\r\n" % " ".join(text.split()).encode("utf-8", "replace")


def _shown(given: bytes) -> str:
    """Return what a caller sent as a part of an error: not too long, and without control characters."""
    text = given[: MAX_SHOWN * 4].decode("utf-8", "replace")
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_SHOWN])
    return shown if len(text) <= MAX_SHOWN else f"{shown}..."


def _ok(_: None) -> bytes:
    return OK


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _value(protocol: int, value: Value) -> bytes:
    if value is None:
        return NULL[protocol]
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return _bulk(value)
    if isinstance(value, str):
        return _bulk(value.encode("utf-8", "replace"))
    return _map(protocol, value)


def _map(protocol: int, pairs: Sequence[tuple[str, Any]]) -> bytes:
    """Return a map, which in RESP2 is a flat array."""
    head = b"%%%d\r\n" % len(pairs) if protocol == 3 else b"*%d\r\n" % (2 * len(pairs))
    return head + _members(protocol, pairs)


def _members(protocol: int, pairs: Sequence[tuple[str, Any]]) -> bytes:
    return b"".join(_bulk(name.encode()) + _value(protocol, value) for name, value in pairs)


def _facts(facts: RespCommandFacts) -> bytes:
    """Return a command as COMMAND lists it: name, arity, flags, positions of keys."""
    flags = b"".join(b"+%b\r\n" % flag.encode() for flag in facts.flags)
    head = b"*6\r\n%b:%d\r\n*%d\r\n%b" % (_bulk(facts.name.encode()), facts.arity, len(facts.flags), flags)
    return head + b":%d\r\n:%d\r\n:%d\r\n" % (facts.key, facts.key, 1 if facts.key else 0)


def _decision_pairs(decision: Decision) -> Told:
    """Return a decision as RB commands tell it."""
    waits = [row[2] for row in decision.rows if not row[0]]
    wait = None if None in waits else max(filter(None, waits), default=0)
    reset = round(decision.reset_after * SECOND)
    values = (
        int(decision.allowed),
        decision.limit.burst,
        decision.remaining,
        *_wait(wait),
        -(-reset // SECOND),
        -(-reset // MILLISECOND),
        -(-round(decision.delay * SECOND) // MILLISECOND),
        decision.limit.name,
        int(decision.degraded is not None),
    )
    return list(zip(DECISION_FIELDS, values, strict=True))


def _wait(wait: int | None) -> tuple[int, int]:
    """Return a time to wait in seconds and in milliseconds; -1 if no wait helps."""
    return (-1, -1) if wait is None else (-(-wait // SECOND), -(-wait // MILLISECOND))


@lru_cache(maxsize=4096)
def _allowed_form(protocol: int, burst: int, name: str) -> bytes:
    """Return the answer of an allowed decision, with places for remaining, both resets and the delay."""
    values = (1, burst, b"REMAINING", 0, 0, b"RESET", b"RESET_MS", b"DELAY_MS", name, 0)
    pairs = list(zip(DECISION_FIELDS, values, strict=True))
    form = _map(protocol, pairs).replace(b"%", b"%%")
    for place in (b"REMAINING", b"RESET", b"RESET_MS", b"DELAY_MS"):
        form = form.replace(_bulk(place), b":%d\r\n", 1)
    return form


def _writer(protocol: int) -> Callable[[Decision], bytes]:
    """Return the function that writes decisions."""

    def write(decision: Decision) -> bytes:
        rows = decision.rows
        if len(rows) != 1 or not decision.allowed or decision.degraded is not None:
            return _map(protocol, _decision_pairs(decision))
        row, limit = rows[0], decision.limit
        reset = row[3]
        form = _allowed_form(protocol, limit.burst, limit.name)
        return form % (row[1], -(-reset // SECOND), -(-reset // MILLISECOND), -(-row[4] // MILLISECOND))

    return write


_WRITERS = {2: _writer(2), 3: _writer(3)}


def _verdict_pairs(verdict: Verdict, view: RequestView) -> Told:
    """Return a verdict as RB.DECIDE tells it: the decision, and the response that the client should get."""
    status, headers, body = verdict_response(verdict, view)
    decision = told_decision(verdict)
    if decision is None:
        wait = _wait(0 if verdict.allowed else verdict.block_wait)
        values = (int(verdict.allowed), None, None, *wait, 0, 0, 0, None, 0)
        pairs: Told = list(zip(DECISION_FIELDS, values, strict=True))
    else:
        pairs = _decision_pairs(decision)
        pairs[0] = ("allowed", int(verdict.allowed))
    rule = verdict.rule
    return [
        *pairs,
        ("status", status),
        ("rule", None if rule is None else rule.name),
        ("headers", _header_pairs(headers)),
        ("body", body),
    ]


def _header_pairs(headers: Pairs) -> Told:
    return [(name.lower(), value) for name, value in headers]
