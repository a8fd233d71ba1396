"""The commands and their options."""

import sys
from io import TextIOWrapper

import click
from rich.console import Console

from ratebound import __version__, compiled
from ratebound.cli.command_group import CommandGroup
from ratebound.cli.demo import show_demo
from ratebound.cli.exit_status import errors_told
from ratebound.cli.explain import explain_limits
from ratebound.cli.parameters import ALGORITHM
from ratebound.errors import InvalidLimit
from ratebound.limit import ALGORITHMS, Algorithm, limit_set
from ratebound.notation import parse_limits

# The path of a user: understand, write, prove, run, operate.
SECTIONS = {
    "Understand limits": ("explain", "demo"),
    "Write a policy": ("policy", "replay"),
    "Prove that limits hold": ("loadtest", "call"),
    "Run the service and its storage": ("serve", "storage", "zone"),
    "Operate what runs": ("ask", "top", "state", "blocks", "overrides", "switches", "ledger"),
    "Set up your shell": ("completion",),
}
# Shown as they are, which \b says.
EPILOG = """\b
Start with:
  ratebound explain "10/second burst 20; 500/hour"
  ratebound replay access.log --write-policy policy.yaml
  ratebound serve --policy policy.yaml

`ratebound COMMAND --help` explains a command, with examples.
"""


@click.group(
    cls=CommandGroup,
    sections=SECTIONS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message=f"ratebound %(version)s ({'compiled' if compiled else 'pure Python'})")
def app() -> None:
    """Limit rates: understand a limit, write a policy, prove that it holds, run it, and see what it does."""


@app.command(short_help="Explain limits in words and in a picture.")
@click.argument("limits", metavar="LIMITS")
@click.option(
    "--default-algorithm",
    type=ALGORITHM,
    metavar="NAME",
    help=f"The algorithm of limits that name none and have no burst: {', '.join(ALGORITHMS)}.",
)
def explain(limits: str, default_algorithm: Algorithm | None) -> None:
    """Explain in words and in a picture what LIMITS allow, and which of them binds when.

    \b
    Examples:
      ratebound explain "10/second burst 20; 500/hour"
      ratebound explain "10000/calendar-month in Europe/Berlin"
      ratebound explain 100/minute --default-algorithm fixed-window
    """
    with errors_told():
        explain_limits(limit_set(parse_limits(limits, default=default_algorithm)), open_console())


@app.command(short_help="Play the same traffic through every algorithm.")
@click.argument("limit", default="10/second burst 5")
@click.option("--seconds", type=float, metavar="SECONDS", help="Length of the traffic; four periods by default.")
def demo(limit: str, seconds: float | None) -> None:
    """Play the same bursty traffic through every algorithm, side by side.

    LIMIT gives count, period and burst ("10/second burst 5" by default); its algorithm does not matter.

    \b
    Examples:
      ratebound demo
      ratebound demo "5/second burst 10" --seconds 6
    """
    with errors_told():
        limits = parse_limits(limit)
        if len(limits) != 1:
            raise InvalidLimit(f"the demo takes one limit, not {len(limits)}; use explain for several")
        show_demo(limits[0], seconds, open_console())


class _Console(Console):
    """A console that leaves it to `errors_told` what a closed pipe means: rich would exit with status 1."""

    def on_broken_pipe(self) -> None:
        raise


def open_console() -> Console:
    """Return a console on the standard output, for tables and colours."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters shows '?' instead of failing
    return _Console(highlight=False, soft_wrap=False)
