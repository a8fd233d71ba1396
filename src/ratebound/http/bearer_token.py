"""The rule for bearer tokens: they are too long to be guessed, and can be sent in a header."""

LEAST = 16  # characters


def check_token(token: str, whose: str = "a token") -> None:
    """Raise ValueError, without the token in its message, if a token is too short or cannot be sent."""
    if len(token) < LEAST or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"{whose} must have at least {LEAST} printable ASCII characters and no blanks; make one with"
            " `openssl rand -hex 32`"
        )
