"""One configuration of Kong's rate-limiting plugin, by itself: what it counts by, how much, and what else it says."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratebound.limit import MAX_COUNT, UNITS
from ratebound.policy.imports.draft import Draft, Reference, is_true, number
from ratebound.policy.problem import PolicyError, Problem, shown

PLAIN, ADVANCED = "rate-limiting", "rate-limiting-advanced"
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
    """`limits` and `by` in the words of a policy; `path` is one that is counted for all clients together."""

    limits: str
    by: Any
    path: str = ""
    message: str = ""
    failure: str = ""


class Whole:
    """What a policy says once, and Kong in every plugin."""

    def __init__(self) -> None:
        self.headers: set[bool] = set()
        self.statuses: set[int] = set()
        self.storages: dict[str, Reference] = {}


def plugin_name(entity: Mapping[str, Any]) -> str:
    """Under `name`, or under `plugin` as Kubernetes has it."""
    name = entity.get("name")
    return str(name if name in (PLAIN, ADVANCED) else entity.get("plugin", name))


def read_plugin(entity: Mapping[str, Any], draft: Draft, whole: Whole) -> KongPlugin | None:
    """None if it is another plugin, or one that is switched off."""
    name = plugin_name(entity)
    if name not in (PLAIN, ADVANCED):
        return None
    if not is_true(entity.get("enabled", True)):
        draft.lose(f"a plugin {name} that is not enabled is left out")
        return None
    config = entity.get("config")
    if not isinstance(config, Mapping):
        raise PolicyError([Problem((), f"plugin {name}: expected a config, not {shown(config)}")])
    for key in sorted(set(map(str, config)) - FIELDS):
        draft.lose(f"{name}: {key} is left out")
    limits = _windows(config, draft) if name == PLAIN else _advanced(config, draft)
    if not limits:
        raise PolicyError([Problem((), f"plugin {name}: there is no limit in it")])
    by, path = _by(config, draft)
    store = config.get("policy") or config.get("strategy") or "local"
    _settings(config, str(store), draft, whole)
    # With a store out of reach Kong lets requests pass, or answers 500.
    failure = "" if store == "local" else "open" if is_true(config.get("fault_tolerant", True)) else "closed"
    return KongPlugin("; ".join(limits), by, path, str(config.get("error_message") or ""), failure)


def _windows(config: Mapping[str, Any], draft: Draft) -> list[str]:
    found = []
    for unit in PERIODS:
        if config.get(unit) is not None:
            found.append(f"{_whole(config[unit], unit)}/{unit} fixed-window")
            if unit in CALENDAR:
                draft.lose(
                    f"Kong's {unit} is that of the calendar; here it is {'30' if unit == 'month' else '365'} days"
                )
    return found


def _advanced(config: Mapping[str, Any], draft: Draft) -> list[str]:
    counts, sizes = config.get("limit"), config.get("window_size")
    if not isinstance(counts, list) or not isinstance(sizes, list) or len(counts) != len(sizes):
        raise PolicyError([Problem((), "rate-limiting-advanced: expected as many of limit as of window_size")])
    sliding = config.get("window_type", "sliding") == "sliding"
    if sliding and not is_true(config.get("disable_penalty")):
        draft.lose("Kong's sliding windows count refused requests, too; here a refusal costs nothing")
    algorithm = "sliding-counter" if sliding else "fixed-window"
    return [
        f"{_whole(count, 'limit')}/{_period(_whole(size, 'window_size'))} {algorithm}"
        for count, size in zip(counts, sizes, strict=True)
    ]


def _whole(value: Any, label: str) -> int:
    found = number(value)
    if found is None or not found.is_integer() or found < 1:
        raise PolicyError([Problem((), f"{label}: expected a whole number from 1 on, not {shown(value)}")])
    return min(int(found), MAX_COUNT)  # beyond that nothing is limited, there as here


def _period(seconds: int) -> str:
    for unit in ("day", "hour", "minute"):
        length = UNITS[unit] // UNITS["second"]
        if seconds % length == 0:
            return unit if seconds == length else f"{seconds // length} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"


def _by(config: Mapping[str, Any], draft: Draft) -> tuple[Any, str]:
    """Kong falls back to the address wherever it finds nobody; so does every `by`."""
    limit_by = config.get("limit_by") or config.get("identifier") or "consumer"
    if limit_by == "ip":
        return "address", ""
    if limit_by == "service":
        return "global", ""
    if limit_by == "path":
        path = config.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            raise PolicyError([Problem((), f"limit_by: path needs a path, not {shown(path)}")])
        return "address", path
    if limit_by == "header":
        name = str(config.get("header_name") or "").lower()
        if not name:
            raise PolicyError([Problem((), "limit_by: header needs a header_name")])
        function = "find_" + "".join(c if c.isalnum() else "_" for c in name)
        draft.identities.setdefault(f"header:{name}", {"verify": function})
        draft.lose(
            f"Kong believes whatever a client sends as {name}: here the function {function}(text) has to verify it, and"
            " who is not verified counts by address"
        )
        return [f"header:{name}", "address"], ""
    if limit_by == "credential":
        draft.identities.setdefault("credential", {"call": "credential_of"})
        draft.lose("which credential was used is known to Kong: the function credential_of(request) has to be written")
        return ["credential", "address"], ""
    if limit_by != "consumer":
        draft.lose(f"limit_by: {limit_by} is read as consumer")
    draft.lose("a consumer is Kong's: here it is the user whom the application has authenticated, else the address")
    return ["user", "address"], ""


def _settings(config: Mapping[str, Any], store: str, draft: Draft, whole: Whole) -> None:
    whole.headers.add(is_true(config.get("hide_client_headers")))
    code = config.get("error_code")
    if isinstance(code, int) and 400 <= code <= 599:
        whole.statuses.add(code)
    elif code is not None:
        draft.lose(f"error_code {code} is no error's: here 429")
    if store == "cluster":
        draft.lose("policy: cluster counts in Kong's database: write storage: redis://…")
    if store == "redis":
        redis = config.get("redis") if isinstance(config.get("redis"), Mapping) else {}
        assert isinstance(redis, Mapping)
        told = {
            key: redis.get(key, config.get(f"redis_{key}")) for key in ("host", "port", "database", "ssl", "password")
        }
        if told["password"] or redis.get("username") or config.get("redis_username"):
            draft.lose(
                "the name and password for Redis are not copied: they are read from REDIS_USER and REDIS_PASSWORD"
            )
            login = "${REDIS_USER:-default}:${REDIS_PASSWORD:-}@"
        else:
            login = ""
        host = str(told["host"] or "127.0.0.1").replace("$", "$$")
        place = f"{host}:{told['port'] or 6379}/{told['database'] or 0}"
        whole.storages.setdefault(place, Reference(f"{'rediss' if is_true(told['ssl']) else 'redis'}://{login}{place}"))
    if (number(config.get("sync_rate")) or 0) > 0:
        draft.lose("sync_rate: counts are exact here, not sent to Redis from time to time")
