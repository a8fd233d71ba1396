"""Run the `ratebound` command with `python -m ratebound.cli`, if the script is not on the path."""

from ratebound.cli import main

main()
