"""User names as keys: one key for all spellings of a name."""

import unicodedata

MAX_NAME = 1024  # characters


def canonical_name(text: str) -> str | None:
    """Return a user name normalised to NFKC, case-folded and trimmed, so that all spellings give one key.

    Returns None if nothing usable is left, and for names of more than 1024 characters, since normalising can take
    quadratic time. Use it for names that a client types, as in a login form, if the login compares names the same way.

    Args:
        text: The name as the client typed it.

    Examples:
        >>> from ratebound.policy import canonical_name
        >>> canonical_name(" Alice "), canonical_name("ALICE")
        ('alice', 'alice')
    """
    name = text.strip()
    if len(name) > MAX_NAME:
        return None
    name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()
    if not name or len(name) > MAX_NAME or any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in name):
        return None
    return name
