"""The command `ratebound state`: read, grant and reset what clients have used, and list who holds slots, in the storage
of an application."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from ratebound.cli.app import open_console
from ratebound.cli.command_group import CommandGroup
from ratebound.cli.exit_status import NO_STORAGE, errors_told
from ratebound.cli.operator_name import BY, operator
from ratebound.cli.parameters import ALGORITHM, FILE, STORAGE_URL
from ratebound.cli.policy import ENVIRON, FORMAT, FUNCTIONS, environ_with
from ratebound.cli.policy_functions import functions_from
from ratebound.cli.words import number
from ratebound.errors import RateboundError, StorageError
from ratebound.flow import run
from ratebound.limit import Algorithm
from ratebound.limiter import Limiter
from ratebound.policy import Gate
from ratebound.policy.load.loader import load_policy
from ratebound.policy.runtime.operator_documents import MAX_DETAIL, MAX_TARGET, as_line, recording
from ratebound.policy.runtime.usage import ClientLimits
from ratebound.slots import Holder
from ratebound.storage import keeps_documents
from ratebound.storage.secrecy import split_url
from ratebound.storage.urls import check_is_made
from ratebound.usage import Usage, granting

F = TypeVar("F", bound=Callable[..., Any])

UNCOUNTED = (
    "nothing is counted for this key. --limits reads the key of a Limiter. Web applications and the service count"
    " clients by rule: give their policy with --policy. For limits in code, write a policy with the rules that the"
    " RateLimit header names"
)


class _Client(Protocol):
    """A client whose states are read or changed. `storage` is where they are."""

    @property
    def storage(self) -> Any: ...

    def usage(self) -> list[Usage]: ...

    def assumptions(self) -> list[str]:
        """Return sentences that a person should read beside the usage."""
        ...

    def check_grant(self, units: int) -> None: ...

    def grant(self, units: int) -> list[Usage]: ...

    def reset(self) -> None: ...

    def holders(self) -> list[Holder]: ...


class _LimiterClient:
    """A key of a limiter."""

    def __init__(self, limiter: Limiter, key: str, name: str | None) -> None:
        self._limiter = limiter
        self._key = key
        self._name = name

    @property
    def storage(self) -> Any:
        return self._limiter.storage

    def usage(self) -> list[Usage]:
        return [usage for usage in self._limiter.usage(self._key) if self._name in (None, usage.name)]

    def assumptions(self) -> list[str]:
        return []

    def check_grant(self, units: int) -> None:
        granting(self._key, self._limiter.limits, units, self._name)

    def grant(self, units: int) -> list[Usage]:
        self._limiter.grant(self._key, units, name=self._name)
        return self.usage()

    def reset(self) -> None:
        self._limiter.reset(self._key, limits=[one for one in self._limiter.limits if self._name in (None, one.name)])

    def holders(self) -> list[Holder]:
        return [holder for holder in self._limiter.holders(self._key) if self._name in (None, holder.limit.name)]


class _PolicyClient:
    """A client of a policy, by its identities."""

    def __init__(self, gate: Gate, identity: Sequence[str], rule: str | None, tier: str | None) -> None:
        self._gate = gate
        self._identity = identity
        self._rule = rule
        self._tier = tier

    @property
    def storage(self) -> Any:
        return self._gate.storage

    def usage(self) -> list[Usage]:
        return self._gate.usage_of(self._identity, rule=self._rule, tier=self._tier)

    def assumptions(self) -> list[str]:
        limits = self._limits()
        found = [] if limits.assumed_tier is None else [f"tier {limits.assumed_tier} assumed: give --tier"]
        if limits.other_names:
            found.append(f"did you mean {' or '.join(limits.other_names)}? It is another client")
        return found

    def check_grant(self, units: int) -> None:
        self._limits().granting(units)

    def _limits(self) -> ClientLimits:
        return self._gate._client_limits(self._identity, self._tier, self._rule, None, self._gate._measures())

    def grant(self, units: int) -> list[Usage]:
        return self._gate.grant(self._identity, units, rule=self._rule, tier=self._tier)

    def reset(self) -> None:
        self._gate.reset(self._identity, rule=self._rule)

    def holders(self) -> list[Holder]:
        return self._gate.holders(self._identity, rule=self._rule)


def _options(command: F) -> F:
    """Add the options that all commands have."""
    for option in (
        click.option("--json", "shape", flag_value="json", help="The same as --format json."),
        FORMAT,
        FUNCTIONS,
        ENVIRON,
        click.option(
            "--tier", metavar="TIER", help="The tier of the client, where the policy's lists do not give it one."
        ),
        click.option("--only", metavar="NAME", help="Only this rule of --policy, or this limit of --limits."),
        click.option(
            "--default-algorithm",
            type=ALGORITHM,
            metavar="NAME",
            help="The limiter's default_algorithm, if it has one.",
        ),
        click.option("--policy", "file", type=FILE, help="The policy that KEY is a client of."),
        click.option("--limits", metavar="LIMITS", help="The limits of the limiter, as they are written in the code."),
        click.option(
            "--storage",
            type=STORAGE_URL,
            metavar="URL",
            help="The storage of the application; by default that of the policy.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup, short_help="Read, grant and reset what clients have used.")
def state() -> None:
    """Read, grant and reset what clients have used, and list who holds slots, in the storage of a running application.

    KEY is the key of a limiter with --limits. With --policy it is an identity as in the lists of the policy: user:42,
    203.0.113.7, api-key:acme. For a rule that counts by several identities at once, give all of them.

    \b
    Examples:
      ratebound state usage user:42 --policy policy.yaml
      ratebound state reset user:42 --policy policy.yaml
    """


@state.command(short_help="Show what a client has used of each limit.")
@click.argument("key", nargs=-1, required=True)
@_options
def usage(key: tuple[str, ...], shape: str, **options: Any) -> None:
    """Show what KEY has used of each limit. Nothing is charged.

    Of distinct values it shows how many count, of a penalty how many strikes there are, and until when it blocks.

    \b
    Examples:
      ratebound state usage user:42 --policy policy.yaml
      ratebound state usage user:42 --storage redis://localhost --limits "10000/calendar-month"
    """
    with _client(key, **options) as client:
        found = client.usage()
        _show(found, shape)
        _tell_assumptions(client)
        _tell_uncounted(found, options)


@state.command(short_help="Add units to a client's quotas, in their current windows.")
@click.argument("key", nargs=-1, required=True)
@click.argument("units", type=int, is_eager=True)  # checked first: else a missing UNITS is reported as a missing KEY
@BY
@_options
def grant(key: tuple[str, ...], units: int, shape: str, by: str | None, **options: Any) -> None:
    """Add UNITS to what KEY may use of its quotas in their current windows, and show its usage then.

    A grant ends with its window. It cannot be taken back, except by reset, which also forgets what was spent. It is
    recorded in the audit log, before it is made.

    \b
    Examples:
      ratebound state grant user:42 500 --policy policy.yaml --only api
      ratebound state grant user:42 500 --storage redis://localhost --limits "10000/calendar-month"
    """
    with _client(key, **options) as client:
        client.check_grant(units)
        _record(client, "grant", key, f"{units} units{_of(options)}", by)
        _show(client.grant(units), shape)
        _tell_assumptions(client)


@state.command(short_help="Forget what a client has spent.")
@click.argument("key", nargs=-1, required=True)
@BY
@_options
def reset(key: tuple[str, ...], shape: str, by: str | None, **options: Any) -> None:
    """Forget what KEY has spent, and show its usage then. Strikes are forgotten too, and a block is lifted.

    It is recorded in the audit log, before it is done.

    \b
    Examples:
      ratebound state reset user:42 --policy policy.yaml
      ratebound state reset user:42 --storage redis://localhost --limits "100/hour" --by ann
    """
    with _client(key, **options) as client:
        _record(client, "reset", key, _of(options).strip(), by)
        found = client.usage()
        client.reset()
        _show(client.usage(), shape)
        _tell_assumptions(client)
        _tell_uncounted(found, options)


@state.command(short_help="List the slots that a client holds.")
@click.argument("key", nargs=-1, required=True)
@_options
def holders(key: tuple[str, ...], shape: str, **options: Any) -> None:
    """List the slots of concurrency limits that KEY holds now, in all processes.

    \b
    Examples:
      ratebound state holders user:42 --policy policy.yaml
      ratebound state holders user:42 --storage redis://localhost --limits "3 concurrent"
    """
    with _client(key, **options) as client:
        _check_reached(client.usage())  # else a gate lists the slots that this process granted
        _show_holders(client.holders(), shape)


def _record(client: _Client, action: str, key: Sequence[str], detail: str, by: str | None) -> None:
    """Note a change in the audit log, as the admin API does. Mistakes and an outage are reported before."""
    _check_reached(client.usage())
    if keeps_documents(client.storage):
        target = as_line(" + ".join(key), MAX_TARGET)
        run(recording(client.storage, action, target, as_line(detail, MAX_DETAIL), operator(by)))


def _of(options: Mapping[str, Any]) -> str:
    return "" if options["only"] is None else f" of {'rule' if options['file'] else 'limit'} {options['only']}"


@contextmanager
def _client(
    key: tuple[str, ...],
    *,
    storage: str | None,
    limits: str | None,
    file: str | None,
    default_algorithm: Algorithm | None,
    only: str | None,
    tier: str | None,
    environ: tuple[str, ...],
    module: str | None,
) -> Iterator[_Client]:
    """Open the storage for one command. A mistake exits with status 2, and a storage that fails with status 1."""
    with errors_told(storage=NO_STORAGE, values=True):
        if (limits is None) == (file is None):
            raise RateboundError("expected either --limits, for the key of a limiter, or --policy, for an identity")
        if file is not None:
            policy = load_policy(file, functions=functions_from(module), environ=environ_with(environ))
            with Gate(policy, storage=shared_url(storage or policy.storage)) as gate:
                yield _PolicyClient(gate, key, only, tier)
        elif len(key) > 1:
            raise RateboundError("a limiter has one key: several identities are for --policy")
        elif tier is not None:
            raise RateboundError("a limiter has no tiers: --tier is for --policy")
        else:
            assert limits is not None
            where = shared_url(storage)
            with Limiter(limits, storage=where, default_algorithm=default_algorithm, failure="raise") as limiter:
                _check_name(limiter, only)
                yield _LimiterClient(limiter, key[0], only)


def shared_url(storage: str | None, instead: str = "limiter.usage(key)") -> str:
    """Return the URL of a storage that other processes see. Raises RateboundError for others, and names the call that
    the application can make `instead`."""
    if storage is None:
        raise RateboundError(
            "expected --storage, the URL that the application uses: for example redis://localhost:6379/0, shm://api"
            " or sqlite:///limits.db"
        )
    if split_url(storage).scheme == "memory":
        raise RateboundError(
            f"memory:// is inside the application's process, and this command cannot see it: use {instead} there, the"
            " dashboard or the admin API, or a storage like shm://api or redis://localhost:6379/0"
        )
    check_is_made(storage)
    return storage


def _check_name(limiter: Limiter, only: str | None) -> None:
    names = [limit.name for limit in limiter.limits]
    if only is not None and only not in names:
        raise RateboundError(f"no limit is named {only!r}: expected one of {', '.join(names)}")


def _check_reached(usages: list[Usage]) -> None:
    for one in usages:
        if one.degraded is not None:
            raise StorageError(one.degraded)


def _show(usages: list[Usage], shape: str) -> None:
    _check_reached(usages)
    if shape == "json":
        click.echo(json.dumps([_document(one) for one in usages], ensure_ascii=False, indent=2))
    else:
        show_usage(usages, open_console())


def _tell_assumptions(client: _Client) -> None:
    for one in client.assumptions():
        click.echo(one, err=True)  # stdout has the usage alone, for programs


def _tell_uncounted(found: list[Usage], options: Mapping[str, Any]) -> None:
    """Say what a key is, if no limiter has used it: with another key than the application's, all is zero."""
    if options["limits"] and not any(one.used or one.granted or one.previous or one.blocked for one in found):
        click.echo(UNCOUNTED, err=True)


def _document(one: Usage) -> dict[str, Any]:
    return {
        "name": one.name,
        "rule": one.rule or None,
        "limit": one.limit.text,
        "quota": one.quota,
        "used": one.used,
        "remaining": one.remaining,
        "granted": one.granted,
        "previous": one.previous,
        "resets_at": one.resets_at.isoformat(),
        "blocked": one.blocked,
    }


def show_usage(usages: Sequence[Usage], console: Console) -> None:
    """Print a table of usages, one line for each limit."""
    if not usages:
        console.print("no limit counts this client")
        return
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("limit", overflow="fold")
    for name in ("used", "quota", "remaining", "previous"):
        table.add_column(name, justify="right")
    table.add_column("resets at (UTC)", no_wrap=True)
    for one in usages:
        previous = "" if one.previous is None else number(one.previous)
        quota = number(one.quota) + (f" (+{number(one.granted)})" if one.granted else "")
        ends = f"{one.resets_at:%Y-%m-%d %H:%M:%S}"
        name = f"{one.name}, blocked" if one.blocked else one.name
        table.add_row(name, number(one.used), quota, number(one.remaining), previous, ends)
    console.print(table)


def _show_holders(found: Sequence[Holder], shape: str) -> None:
    if shape == "json":
        documents = [
            {"name": one.limit.name, "limit": one.limit.text, "id": one.id, "expires_at": one.expires_at.isoformat()}
            for one in found
        ]
        click.echo(json.dumps(documents, ensure_ascii=False, indent=2))
    elif not found:
        click.echo("no slot is held")
    else:
        table = Table(box=SIMPLE, pad_edge=False)
        table.add_column("limit", overflow="fold")
        table.add_column("id", justify="right")
        table.add_column("expires at (UTC)", no_wrap=True)
        for one in found:
            table.add_row(one.limit.name, str(one.id), f"{one.expires_at:%Y-%m-%d %H:%M:%S}")
        open_console().print(table)
