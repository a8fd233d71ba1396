"""Types of arguments and options whose values a shell completes: URLs of storages, and names of algorithms."""

import click
from click.shell_completion import CompletionItem

from ratebound.limit import ALGORITHMS
from ratebound.storage.urls import SCHEMES

FILE = click.Path(dir_okay=False)
FILE_OR_STREAM = click.Path(dir_okay=False, allow_dash=True)


class _Beginning(click.types.StringParamType):
    """Text of which a shell completes the beginning. Whoever uses it checks it, with a message of its own."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        self._beginnings = beginnings

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(one) for one in self._beginnings if one.startswith(incomplete)]


STORAGE_URL = _Beginning(tuple(f"{scheme}://" for scheme in SCHEMES))
LEDGER_URL = _Beginning(("sqlite:///", "postgresql://"))
ALGORITHM = _Beginning(ALGORITHMS)
