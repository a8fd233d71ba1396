"""The tokens of operators: who has one, and what it lets its owner do."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ratebound.admin.calls import Role
from ratebound.http.bearer_token import check_token

READ: Final = "read"
WRITE: Final = "write"
UNNAMED: dict[Role, str] = {READ: "reader", WRITE: "admin"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


class OperatorToken(NamedTuple):
    """A token of the control plane. `role` is read or write. `name` says in the audit log who made a change."""

    name: str
    role: Role
    token: str

    def __repr__(self) -> str:
        return f"OperatorToken({self.name!r}, {self.role!r})"


def read_operator_tokens(words: Iterable[str], role: Role) -> tuple[OperatorToken, ...]:
    """Return the tokens in words like TOKEN or NAME=TOKEN. Raises ValueError, without a token in its message."""
    return tuple(_read(word, role) for word in words)


def _read(word: str, role: Role) -> OperatorToken:
    name, _, token = word.partition("=")
    if not token.strip("="):  # no name: a token in base64 may end with = or ==
        name, token = UNNAMED[role], word
    elif not NAME.fullmatch(name):
        raise ValueError(
            "the name in NAME=TOKEN must have 1 to 64 letters, digits or characters of . _ - @ +, and begin with a"
            " letter or a digit"
        )
    check_token(token)
    return OperatorToken(name, role, token)
