"""`python -m ratebound.cli`, where the script is not on the path."""

from ratebound.cli import main

main()
