"""`python -m ratekeeper` is the `ratekeeper` command."""

from ratekeeper.cli import main

main()
