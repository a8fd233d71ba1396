"""The command `ratebound switches`: list, set and remove operators' switches of rules, in the storage of an
application."""

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
from ratebound.errors import RateboundError
from ratebound.flow import run
from ratebound.policy.runtime.operator_documents import listing_entries
from ratebound.policy.runtime.operator_switches import (
    ALL,
    RULE_SWITCHES,
    STATES,
    RuleSwitch,
    removing_switch,
    switching,
)

INSTEAD = "gate.switches()"
RULE = click.option("--rule", metavar="NAME", help="The rule. Without it the switch is for all rules.")


@click.group(cls=CommandGroup, short_help="List, set and remove switches of rules.")
def switches() -> None:
    """List, set and remove switches of rules, in the storage of a running application.

    A rule is switched on, off, into shadow, or to its candidate limits. All processes that use the storage apply a
    change within a second.

    \b
    Examples:
      ratebound switches list --storage redis://localhost
      ratebound switches set shadow --rule search --for 1h --storage redis://localhost
    """


@switches.command("list", short_help="List the switches that operators have set.")
@STORAGE
@FORMAT
@JSON
def list_switches(storage: str | None, shape: str) -> None:
    """List the switches that hold now, the oldest first.

    \b
    Examples:
      ratebound switches list --storage redis://localhost
      ratebound switches list --storage shm://api --json
    """
    with opened(storage, INSTEAD) as (where, _):
        _show(run(listing_entries(where, RULE_SWITCHES)), shape)


@switches.command("set", short_help="Switch a rule, or all rules.")
@click.argument("state", type=click.Choice(STATES))
@RULE
@FOR
@REASON
@BY
@POLICY
@STORAGE_OR_POLICYS
@FORMAT
@JSON
@ENVIRON
@FUNCTIONS
def set_switch(
    state: str,
    rule: str | None,
    length: str | None,
    reason: str,
    by: str | None,
    file: str | None,
    storage: str | None,
    shape: str,
    environ: tuple[str, ...],
    module: str | None,
) -> None:
    """Switch a rule, or all rules without --rule, and show the switch.

    'on' enforces a rule, also one that the policy has in shadow. 'off' turns it off. 'shadow' reports what it would
    deny, and denies nothing. 'candidate' enforces its candidate limits in place of its own, and needs --policy. With
    --policy the switch is refused if the rule does not exist.

    \b
    Examples:
      ratebound switches set shadow --rule search --for 1h --storage redis://localhost
      ratebound switches set candidate --rule search --policy policy.yaml
    """
    with opened(storage, INSTEAD, file, environ, module) as (where, gate):
        who = operator(by)
        if gate is not None:
            found = gate.set_switch(state, rule=rule, for_=length, reason=reason, by=who)  # type: ignore[arg-type]
        elif state == "candidate":
            raise RateboundError("promote a candidate with --policy: the switch stores which limits are meant")
        else:
            found = run(switching(where, state, rule, length, reason, who, lambda switch: switch))
        _show([found], shape)


@switches.command(short_help="Remove the switch of a rule, or of all rules.")
@RULE
@BY
@STORAGE
def remove(rule: str | None, by: str | None, storage: str | None) -> None:
    """Remove the switch of a rule, or the one for all rules. Exits with status 1 if there is none.

    \b
    Examples:
      ratebound switches remove --rule search --storage redis://localhost
      ratebound switches remove --storage redis://localhost
    """
    with opened(storage, INSTEAD) as (where, _):
        if not run(removing_switch(where, rule, by=operator(by))):
            click.echo(f"there is no switch for {rule or ALL}", err=True)
            raise SystemExit(1)
        click.echo(f"{rule or ALL} no longer has this switch")


def _show(found: list[RuleSwitch], shape: str) -> None:
    if found or shape == "json":
        show(found, ("rule", "state", "candidate", "since", "until", "by", "reason"), shape)
    else:
        click.echo("operators have set no switches")
