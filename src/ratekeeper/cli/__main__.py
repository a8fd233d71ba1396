"""`python -m ratekeeper.cli`, where the script is not on the path."""

from ratekeeper.cli import main

main()
