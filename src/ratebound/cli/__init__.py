"""The `ratebound` command. Only this folder knows click and rich; without them the command says what to install."""

import sys


def main() -> None:
    try:
        from ratebound.cli.app import app
        from ratebound.cli.policy import policy
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("the ratebound command needs click and rich: install Ratebound with its extra [cli]\n")
        raise SystemExit(2) from None
    app.add_command(policy)
    app(prog_name="ratebound")
