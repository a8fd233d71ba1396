"""Structured fields (RFC 9651), as far as rate limits need them. Writing and reading are strict.

A field with a mistake anywhere is invalid as a whole: the readers then return None. Inner lists are not read, because
no field of ours has one.
"""

import base64
import re
from decimal import Decimal
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

MAX_INTEGER = 999_999_999_999_999
KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
PRINTABLE = re.compile(r"[ -~]*")
STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")
NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")
BYTES = re.compile(r":([A-Za-z0-9+/]*)(={0,2}):")
DISPLAY = re.compile(r'%"((?:[ !#$&-~]|%[0-9a-f]{2})*)"')
SEPARATOR = re.compile(r"[ \t]*,[ \t]*")


# A token (text without quotes) is read as str, a date as int.
Bare = int | Decimal | str | bytes | bool


class Item(NamedTuple):
    """A value and its parameters."""

    value: Bare
    parameters: dict[str, Bare]


def write_string(text: str) -> str:
    """Return text quoted and escaped. Raises ValueError if a structured field cannot hold it."""
    if not isinstance(text, str) or not PRINTABLE.fullmatch(text):
        raise ValueError(f"{text!r} cannot be sent in a header: expected printable ASCII characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_integer(number: int) -> str:
    """Return a number as text, cut to fifteen digits."""
    return str(max(min(number, MAX_INTEGER), -MAX_INTEGER))


def read_list(text: str) -> list[Item] | None:
    """Return the items of a list; None if it is malformed anywhere, or holds an inner list."""
    text = text.strip(" ")
    items: list[Item] = []
    at = 0
    while at < len(text):
        found = _item(text, at)
        if found is None:
            return None
        item, at = found
        items.append(item)
        if at == len(text):
            break
        comma = SEPARATOR.match(text, at)
        if comma is None or comma.end() == len(text):
            return None
        at = comma.end()
    return items


def read_dictionary(text: str) -> dict[str, Item] | None:
    """Return the members of a dictionary, the last of equal keys; None if it is malformed anywhere."""
    text = text.strip(" ")
    members: dict[str, Item] = {}
    at = 0
    while at < len(text):
        key = KEY.match(text, at)
        if key is None:
            return None
        at = key.end()
        if text.startswith("=", at):
            found = _item(text, at + 1)
            if found is None:
                return None
            item, at = found
        else:
            parameters = _parameters(text, at)
            if parameters is None:
                return None
            item, at = Item(True, parameters[0]), parameters[1]
        members[key[0]] = item
        if at == len(text):
            break
        comma = SEPARATOR.match(text, at)
        if comma is None or comma.end() == len(text):
            return None
        at = comma.end()
    return members


def _item(text: str, at: int) -> tuple[Item, int] | None:
    bare = _bare(text, at)
    if bare is None:
        return None
    parameters = _parameters(text, bare[1])
    return None if parameters is None else (Item(bare[0], parameters[0]), parameters[1])


def _parameters(text: str, at: int) -> tuple[dict[str, Bare], int] | None:
    found: dict[str, Bare] = {}
    while text.startswith(";", at):
        at += 1
        while text.startswith(" ", at):
            at += 1
        key = KEY.match(text, at)
        if key is None:
            return None
        at = key.end()
        value: Bare = True
        if text.startswith("=", at):
            bare = _bare(text, at + 1)
            if bare is None:
                return None
            value, at = bare
        found[key[0]] = value
    return found, at


def _bare(text: str, at: int) -> tuple[Bare, int] | None:
    first = text[at : at + 1]
    if first == '"':
        match = STRING.match(text, at)
        return match and (re.sub(r"\\(.)", r"\1", match[1]), match.end())
    if first == ":":
        match = BYTES.match(text, at)
        decoded = _decoded(match[1], match[2]) if match else None
        return None if match is None or decoded is None else (decoded, match.end())
    if first == "?":
        return (text[at + 1] == "1", at + 2) if text[at + 1 : at + 2] in ("0", "1") else None
    if first == "@":
        number = _number(text, at + 1)
        return number if number and isinstance(number[0], int) else None
    if first == "%":
        match = DISPLAY.match(text, at)
        shown = _displayed(match[1]) if match else None
        return None if match is None or shown is None else (shown, match.end())
    if first == "-" or first.isdigit():
        return _number(text, at)
    match = TOKEN.match(text, at)
    return match and (match[0], match.end())


def _number(text: str, at: int) -> tuple[Bare, int] | None:
    match = NUMBER.match(text, at)
    if match is None or text.startswith(".", match.end()):
        return None
    sign, whole, fraction = match.groups()
    if fraction is None:
        return (int(sign + whole), match.end()) if len(whole) <= 15 else None
    return (Decimal(match[0]), match.end()) if len(whole) <= 12 and len(fraction) <= 3 else None


def _decoded(text: str, padding: str) -> bytes | None:
    """Return decoded Base64, or None. Missing padding and nonzero pad bits are accepted; too much padding is not."""
    wanted = -len(text) % 4
    if wanted == 3 or len(padding) > wanted:
        return None
    return base64.b64decode(text + "=" * wanted)


def _displayed(text: str) -> str | None:
    """Return the text of a display string; None if its bytes are not UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None
