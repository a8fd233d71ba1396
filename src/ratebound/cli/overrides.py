"""The command `ratebound overrides`: list, add and remove other limits that operators give to clients, in the storage
of an application."""

import click

from ratebound.cli.command_group import CommandGroup
from ratebound.cli.operator_name import BY, operator
from ratebound.cli.operator_options import (
    FOR,
    JSON,
    POLICY,
    REASON,
    STORAGE,
    STORAGE_OR_POLICYS,
    opened,
    show,
)
from ratebound.cli.policy import ENVIRON, FORMAT, FUNCTIONS
from ratebound.flow import run
from ratebound.policy.model.rule import read_limits
from ratebound.policy.runtime.operator_documents import listing_entries
from ratebound.policy.runtime.operator_overrides import (
    OVERRIDES,
    ClientOverride,
    overriding,
    removing_override,
)

INSTEAD = "gate.overrides()"
RULES = click.option("--rule", "rules", multiple=True, metavar="NAME", help="Only for this rule. Can be repeated.")


@click.group(cls=CommandGroup, short_help="List, add and remove other limits for single clients.")
def overrides() -> None:
    """List, add and remove other limits, or another tier, for single clients, in the storage of a running application.

    CLIENT is written as in the lists of a policy: 203.0.113.7, 203.0.113.0/24, user:42, api-key:acme. All processes
    that use the storage apply a change within a second. These overrides win over those of the policy.

    \b
    Examples:
      ratebound overrides list --storage redis://localhost
      ratebound overrides add user:42 --limits 1000/minute --for 1h --policy policy.yaml
    """


@overrides.command("list", short_help="List the overrides that operators have set.")
@STORAGE
@FORMAT
@JSON
def list_overrides(storage: str | None, shape: str) -> None:
    """List the overrides that hold now, the oldest first.

    \b
    Examples:
      ratebound overrides list --storage redis://localhost
      ratebound overrides list --storage shm://api --json
    """
    with opened(storage, INSTEAD) as (where, _):
        _show(run(listing_entries(where, OVERRIDES)), shape)


@overrides.command(short_help="Give a client other limits or another tier.")
@click.argument("client")
@click.option("--limits", metavar="TEXT", help="The limits: 1000/minute, deny, unlimited.")
@click.option("--tier", metavar="NAME", help="A tier of the policy, instead of limits.")
@RULES
@FOR
@REASON
@BY
@POLICY
@STORAGE_OR_POLICYS
@FORMAT
@JSON
@ENVIRON
@FUNCTIONS
def add(
    client: str,
    limits: str | None,
    tier: str | None,
    rules: tuple[str, ...],
    length: str | None,
    reason: str,
    by: str | None,
    file: str | None,
    storage: str | None,
    shape: str,
    environ: tuple[str, ...],
    module: str | None,
) -> None:
    """Give CLIENT other limits or another tier, and show the override. It takes the place of one for the same rules.

    With --policy it is refused if a rule or the tier does not exist, or if a rule cannot have these limits. Without, an
    application that cannot apply it logs why.

    \b
    Examples:
      ratebound overrides add user:42 --limits 1000/minute --for 1h --policy policy.yaml
      ratebound overrides add user:42 --tier pro --policy policy.yaml
    """
    with opened(storage, INSTEAD, file, environ, module) as (where, gate):
        who = operator(by)
        if gate is not None:
            override = gate.override(client, limits=limits, tier=tier, rules=rules, for_=length, reason=reason, by=who)
        else:
            override = run(overriding(where, client, limits, tier, rules, length, reason, who, _check_limits))
        _show([override], shape)


@overrides.command(short_help="Remove the override of a client.")
@click.argument("client")
@RULES
@BY
@STORAGE
def remove(client: str, rules: tuple[str, ...], by: str | None, storage: str | None) -> None:
    """Remove the override of CLIENT for all rules, or the one for exactly the rules that --rule names. Exits with
    status 1 if there is none.

    \b
    Examples:
      ratebound overrides remove user:42 --storage redis://localhost
      ratebound overrides remove user:42 --by ann --storage shm://api
    """
    with opened(storage, INSTEAD) as (where, _):
        if not run(removing_override(where, client, rules, by=operator(by))):
            others = [one for one in run(listing_entries(where, OVERRIDES)) if one.client == client]
            hint = "".join(f"\nit has one for {', '.join(one.rules) or 'all rules'}" for one in others)
            click.echo(f"{client} has no such override{hint}", err=True)
            raise SystemExit(1)
        click.echo(f"{client} no longer has this override")


def _check_limits(override: ClientOverride) -> None:
    if override.limits is not None:
        read_limits(override.limits)


def _show(found: list[ClientOverride], shape: str) -> None:
    if found or shape == "json":
        show(found, ("client", "limits", "tier", "rules", "since", "until", "by", "reason"), shape)
    else:
        click.echo("operators have set no overrides")
