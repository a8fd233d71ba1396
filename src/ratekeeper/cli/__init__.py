"""The `ratekeeper` command."""


def main() -> None:
    raise SystemExit("not yet")
