"""Values that a limit of distinct values counts: whether one can be counted, and its digest.

A digest is salted with the key, so equal values of two keys have nothing in common. It has 53 bits, which a double, and
so Lua, holds exactly: two of 10 000 values collide once in a hundred million keys, and then count as one.
"""

import sys
from collections.abc import Mapping
from hashlib import blake2b

from ratebound.errors import InvalidValue
from ratebound.limit import Limit

Values = Mapping[str, str | int]


def digest_of(key: str, value: str) -> int:
    """Return the digest of a value of a key: a whole number of 53 bits."""
    salt = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    found = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=7, key=salt).digest()
    return int.from_bytes(found, "big") >> 3


def value_of(limit: Limit, values: Values | None) -> str:
    """Return the value that a limit of distinct values counts. Raises InvalidValue if it is missing, or no value."""
    name = limit.values
    value = None if values is None else values.get(name)
    if type(value) is str:
        return value
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str.__str__(value) if isinstance(value, str) else _digits(name, value)
    if value is None:
        raise InvalidValue(f"'{limit}' needs a value: hit(key, values={{{name!r}: …}})")
    raise InvalidValue(f"the value of {name!r} must be text or a whole number, not {type(value).__name__}")


def _digits(name: str, value: int) -> str:
    """Return a whole number as text. Raises InvalidValue if it has more digits than Python writes."""
    try:
        return str(int(value))
    except ValueError:
        raise InvalidValue(
            f"the value of {name!r} must be a whole number with at most {sys.get_int_max_str_digits()} digits:"
            " give it as text"
        ) from None


def check_names(limits: tuple[Limit, ...], values: object) -> None:
    """Raise InvalidValue for values that no limit counts, or that are not in a mapping."""
    if not isinstance(values, Mapping):
        raise InvalidValue(f"values must be a mapping like {{'account': 'alice'}}, not {type(values).__name__}")
    known = [limit.values for limit in limits if limit.is_distinct]
    for name in values:
        if name not in known:
            expected = f"expected {', '.join(map(repr, known))}" if known else "no limit here counts distinct values"
            raise InvalidValue(f"unknown value {name!r}: {expected}")
