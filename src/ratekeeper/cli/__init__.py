"""The `ratekeeper` command. Only this folder knows click and rich; without them the command says what to install."""

import sys


def main() -> None:
    try:
        from ratekeeper.cli.app import app
        from ratekeeper.cli.policy import policy
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write("the ratekeeper command needs click and rich: install Ratekeeper with its extra [cli]\n")
        raise SystemExit(2) from None
    app.add_command(policy)
    app(prog_name="ratekeeper")
