"""User names as one key, whatever way they are typed."""

import unicodedata

MAX_NAME = 1024  # characters of what somebody types


def canonical_name(text: str) -> str | None:
    """A user name as one key whatever way it is typed: NFKC, folded, trimmed. None if nothing usable is left, and for
    more than 1024 characters: normalising may take the square of the length.

    For identities that come from what a client types, as in a login form: use it if the login itself compares so.
    """
    name = text.strip()
    if len(name) > MAX_NAME:
        return None
    name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()
    if not name or len(name) > MAX_NAME or any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in name):
        return None
    return name
