"""Run the `ratebound` command with `python -m ratebound`."""

from ratebound.cli import main

main()
