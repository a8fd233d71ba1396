"""`python -m ratebound` is the `ratebound` command."""

from ratebound.cli import main

main()
