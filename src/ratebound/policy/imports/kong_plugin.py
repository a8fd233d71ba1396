"""One configuration of Kong's rate-limiting plugin: its limits, the identity that it counts by, and its settings."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratebound.limit import MAX_COUNT
from ratebound.policy.imports.draft import Draft, Reference, is_true, number, period_text
from ratebound.policy.problem import PolicyError, Problem, shown

PLAIN, ADVANCED = "rate-limiting", "rate-limiting-advanced"
OTHERS = ("response-ratelimiting", "graphql-rate-limiting-advanced", "ai-rate-limiting-advanced", "service-protection")
PERIODS = ("second", "minute", "hour", "day", "month", "year")
CALENDAR = ("month", "year")
FIELDS = {
    *PERIODS,
    *("limit", "window_size", "window_type", "limit_by", "identifier", "policy", "strategy", "fault_tolerant", "path"),
    *("hide_client_headers", "error_code", "error_message", "header_name", "redis", "sync_rate", "disable_penalty"),
    *("namespace", "dictionary_name", "retry_after_jitter_max"),
    *("redis_host", "redis_port", "redis_password", "redis_database", "redis_ssl", "redis_username", "redis_timeout"),
}


class KongPlugin(NamedTuple):
    """A rate-limiting plugin. `limits` and `by` are as in a policy; `path` is counted for all clients together."""

    limits: str
    by: Any
    path: str = ""
    message: str = ""
    failure: str = ""


class SharedSettings:
    """Settings that a policy has once, and Kong in every plugin: all values that were found."""

    def __init__(self) -> None:
        self.headers: set[bool] = set()
        self.statuses: set[int] = set()
        self.storages: dict[str, Reference] = {}


def plugin_name(entity: Mapping[str, Any]) -> str:
    """Return the name of a plugin, which is under `name`, or under `plugin` in a Kubernetes resource."""
    name = entity.get("name")
    return str(name if name in (PLAIN, ADVANCED) else entity.get("plugin", name))


def read_plugin(entity: Mapping[str, Any], draft: Draft, shared: SharedSettings) -> KongPlugin | None:
    """Return a rate-limiting plugin, None if it is another plugin or not enabled. Raises PolicyError if it cannot be
    read."""
    name = plugin_name(entity)
    if name in OTHERS:
        draft.lose(f"the plugin {name} is left out")
    if name not in (PLAIN, ADVANCED):
        return None
    if not is_true(entity.get("enabled", True)):
        draft.lose(f"a plugin {name} is not enabled, so it is left out")
        return None
    config = entity.get("config")
    if not isinstance(config, Mapping):
        raise PolicyError([Problem((), f"plugin {name}: expected a mapping as config, not {shown(config)}")])
    for key in sorted(set(map(str, config)) - FIELDS):
        draft.lose(f"{name}: {key} is left out")
    limits = _plain_limits(config) if name == PLAIN else _advanced_limits(config, draft)
    if not limits:
        raise PolicyError([Problem((), f"plugin {name}: it has no limit: expected for example 'minute: 5'")])
    by, path = _by(config, draft)
    store = config.get("policy") or config.get("strategy") or "local"
    _read_settings(config, str(store), draft, shared)
    # While its store is unavailable, Kong allows requests, or responds with 500.
    failure = "" if store == "local" else "open" if is_true(config.get("fault_tolerant", True)) else "closed"
    return KongPlugin("; ".join(limits), by, path, str(config.get("error_message") or ""), failure)


def _plain_limits(config: Mapping[str, Any]) -> list[str]:
    found = []
    for unit in PERIODS:
        if config.get(unit) is not None:
            period = f"calendar-{unit}" if unit in CALENDAR else f"{unit} fixed-window"
            found.append(f"{_whole_number(config[unit], unit)}/{period}")
    return found


def _advanced_limits(config: Mapping[str, Any], draft: Draft) -> list[str]:
    counts, sizes = config.get("limit"), config.get("window_size")
    if not isinstance(counts, list) or not isinstance(sizes, list) or len(counts) != len(sizes):
        raise PolicyError(
            [Problem((), "rate-limiting-advanced: expected lists of the same length for limit and window_size")]
        )
    sliding = config.get("window_type", "sliding") == "sliding"
    if sliding and not is_true(config.get("disable_penalty")):
        draft.lose("Kong's sliding windows count denied requests too; in this policy a denied request costs nothing")
    algorithm = "sliding-counter" if sliding else "fixed-window"
    return [
        f"{_whole_number(count, 'limit')}/{period_text(_whole_number(size, 'window_size'))} {algorithm}"
        for count, size in zip(counts, sizes, strict=True)
    ]


def _whole_number(value: Any, label: str) -> int:
    found = number(value)
    if found is None or not found.is_integer() or found < 1:
        raise PolicyError([Problem((), f"{label}: expected a whole number of at least 1, not {shown(value)}")])
    return min(int(found), MAX_COUNT)  # no client reaches more than that anyway


def _by(config: Mapping[str, Any], draft: Draft) -> tuple[Any, str]:
    """Return the `by` of a plugin, and its path for `limit_by: path`. Kong falls back to the address if it finds no
    identity, and so does every `by`."""
    limit_by = config.get("limit_by") or config.get("identifier") or "consumer"
    if limit_by == "ip":
        return "address", ""
    if limit_by == "service":
        return "global", ""
    if limit_by == "path":
        path = config.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            raise PolicyError([Problem((), f"limit_by: path needs a path that begins with '/', not {shown(path)}")])
        return "address", path
    if limit_by == "header":
        name = str(config.get("header_name") or "").lower()
        if not name:
            raise PolicyError([Problem((), "limit_by: header needs header_name: add it")])
        function = "find_" + "".join(c if c.isalnum() else "_" for c in name)
        draft.identities.setdefault(f"header:{name}", {"verify": function})
        draft.lose(
            f"Kong accepts any value of {name}: write a function {function}(text) that verifies it; other clients count"
            " by address"
        )
        return [f"header:{name}", "address"], ""
    if limit_by == "credential":
        draft.identities.setdefault("credential", {"call": "credential_of"})
        draft.lose("only Kong knows which credential was used: write a function credential_of(request) that returns it")
        return ["credential", "address"], ""
    if limit_by != "consumer":
        draft.lose(f"limit_by: {limit_by} is imported as consumer")
    draft.lose("only Kong knows its consumers; this policy counts by the authenticated user, else by address")
    return ["user", "address"], ""


def _read_settings(config: Mapping[str, Any], store: str, draft: Draft, shared: SharedSettings) -> None:
    shared.headers.add(is_true(config.get("hide_client_headers")))
    code = config.get("error_code")
    if isinstance(code, int) and 400 <= code <= 599:
        shared.statuses.add(code)
    elif code is not None:
        draft.lose(f"error_code {code} is not an error status; this policy uses 429")
    if store == "cluster":
        draft.lose("policy: cluster counts in Kong's database; write storage: redis://… instead")
    if store == "redis":
        redis = config.get("redis") if isinstance(config.get("redis"), Mapping) else {}
        assert isinstance(redis, Mapping)
        settings = {
            key: redis.get(key, config.get(f"redis_{key}")) for key in ("host", "port", "database", "ssl", "password")
        }
        if settings["password"] or redis.get("username") or config.get("redis_username"):
            draft.lose(
                "the user name and password for Redis are not copied: set the environment variables REDIS_USER and"
                " REDIS_PASSWORD"
            )
            login = "${REDIS_USER:-default}:${REDIS_PASSWORD:-}@"
        else:
            login = ""
        host = str(settings["host"] or "127.0.0.1").replace("$", "$$")
        place = f"{host}:{settings['port'] or 6379}/{settings['database'] or 0}"
        scheme = "rediss" if is_true(settings["ssl"]) else "redis"
        shared.storages.setdefault(place, Reference(f"{scheme}://{login}{place}"))
    if (number(config.get("sync_rate")) or 0) > 0:
        draft.lose("sync_rate is left out: in this policy every request is counted in Redis at once")
