"""The fields of calls: their kinds, how they are read, and everything that is wrong with them at once."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from ratebound.admin.messages import CallError, WrongField
from ratebound.admin.operators import Role
from ratebound.calendar_period import zone_of
from ratebound.ledger.periods import month_bounds
from ratebound.ledger.spans import read_instant
from ratebound.limit import MAX_COUNT
from ratebound.policy.duration_text import DURATION
from ratebound.policy.problem import nearest, shown

MAX_FIELDS = 100  # in a query
MAX_NAMES = 100  # in a list
MAX_SECONDS = 10**10  # of a duration: some 300 years
DIGEST = re.compile(r"[0-9a-f]{4,64}")
STATES = ("on", "off", "shadow")
FORMATS = ("yaml", "json", "toml")
SPANS = ("hour", "day", "month", "bucket")  # of the usage ledger
MEASURES = ("units", "denied", "overage")
MOST_ROWS = 1_000


class CallField(NamedTuple):
    """A field of a call. `role` is the role that it takes, if that is above the one of its call."""

    name: str
    kind: str
    text: str
    is_required: bool = False
    role: Role = "read"


class FieldKind(NamedTuple):
    """A kind of field: its JSON schema, and what returns the value of one. `check` raises ValueError.

    `is_list` is True if the field may be repeated in a query.
    """

    schema: Mapping[str, Any]
    check: Callable[[Any], Any]
    is_list: bool = False


def _text(most: int, what: str) -> Callable[[Any], str]:
    def check(given: Any) -> str:
        if not isinstance(given, str):
            raise ValueError(f"expected {what}, not {shown(given)}")
        if not given:
            raise ValueError(f"expected {what}, not empty text")
        if len(given) > most:
            raise ValueError(f"expected at most {most} characters, not {len(given)}")
        return _as_unicode(given)

    return check


def _line(given: Any) -> str:
    if not isinstance(given, str) or len(given) > 200 or not given.isprintable():
        raise ValueError(f"expected one line of at most 200 characters, not {shown(given)}")
    return _as_unicode(given)


def _texts(most: int, check: Callable[[Any], str], what: str) -> Callable[[Any], list[str]]:
    def checked(given: Any) -> list[str]:
        listed = given if isinstance(given, list) else [given]
        if not 0 < len(listed) <= most:
            raise ValueError(f"expected 1 to {most} {what}, not {len(listed)}")
        return [check(one) for one in listed]

    return checked


def _duration(given: Any) -> float | str:
    if isinstance(given, str):
        if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", given):
            given = float(given)  # a number in a query
        elif len(given) <= 100 and DURATION.fullmatch(given):
            return given  # the gate reads it
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < given <= MAX_SECONDS:
        raise ValueError(f"expected seconds, or text like '1 hour', not {shown(given)}")
    return float(given)


def _units(given: Any) -> int:
    if isinstance(given, float) and math.isfinite(given) and given.is_integer():
        given = int(given)  # JSON does not tell 5.0 from 5
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= MAX_COUNT:
        raise ValueError(f"expected a whole number from 1 to {MAX_COUNT}, not {shown(given)}")
    return given


def _one_of(*known: str) -> Callable[[Any], str]:
    def check(given: Any) -> str:
        if not isinstance(given, str) or given not in known:
            raise ValueError(f"expected {', '.join(known[:-1])} or {known[-1]}, not {shown(given)}")
        return given

    return check


def _digest(given: Any) -> str:
    if not isinstance(given, str) or not DIGEST.fullmatch(given):
        raise ValueError(f"expected a digest of the figures, 4 to 64 hexadecimal digits, not {shown(given)}")
    return given


def _flag(given: Any) -> bool:
    return _one_of("yes", "no")(given) == "yes"


def _instant(given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError(f"expected a time like 2026-11-16 or 2026-11-16T09:30:00Z, not {shown(given)}")
    read_instant(given)
    return given


def _month(given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError(f"expected a month like 2026-11, not {shown(given)}")
    month_bounds(given, "UTC")
    return given


def _zone(given: Any) -> str:
    if not isinstance(given, str) or len(given) > 100:
        raise ValueError(f"expected a time zone like Europe/Berlin, not {shown(given)}")
    zone_of(given)
    return given


def _most(given: Any) -> int:
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 6:
        given = int(given)  # a number in a query
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= MOST_ROWS:
        raise ValueError(f"expected a whole number from 1 to {MOST_ROWS}, not {shown(given)}")
    return given


def _as_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character: remove it") from None
    return text


_client = _text(1_000, "a client like 203.0.113.7 or user:42")
_name = _text(200, "a name")


def _string(most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


KINDS: dict[str, FieldKind] = {
    "client": FieldKind(_string(1_000), _client),
    "clients": FieldKind(
        {"oneOf": [_string(1_000), {"type": "array", "items": _string(1_000), "minItems": 1, "maxItems": 10}]},
        _texts(10, _client, "names of one client"),
        is_list=True,
    ),
    "name": FieldKind(_string(200), _name),
    "names": FieldKind(
        {"type": "array", "items": _string(200), "minItems": 1, "maxItems": MAX_NAMES},
        _texts(MAX_NAMES, _name, "names"),
        is_list=True,
    ),
    "line": FieldKind(_string(200, 0), _line),
    "limits": FieldKind(_string(200), _text(200, "limits like 100/minute")),
    "token": FieldKind(_string(1_000), _text(1_000, "a token")),
    "text": FieldKind({"type": "string", "minLength": 1}, _text(1_000_000, "the text of a policy")),
    "digest": FieldKind({"type": "string", "pattern": "^[0-9a-f]{4,64}$"}, _digest),
    "duration": FieldKind(
        {
            "oneOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS},
                {"type": "string", "maxLength": 100},
            ]
        },
        _duration,
    ),
    "units": FieldKind({"type": "integer", "minimum": 1, "maximum": MAX_COUNT}, _units),
    "state": FieldKind({"type": "string", "enum": list(STATES)}, _one_of(*STATES)),
    "format": FieldKind({"type": "string", "enum": list(FORMATS)}, _one_of(*FORMATS)),
    "instant": FieldKind(_string(40), _instant),
    "month": FieldKind({"type": "string", "pattern": "^[0-9]{4}-(0[1-9]|1[0-2])$"}, _month),
    "zone": FieldKind(_string(100), _zone),
    "span": FieldKind({"type": "string", "enum": list(SPANS)}, _one_of(*SPANS)),
    "measure": FieldKind({"type": "string", "enum": list(MEASURES)}, _one_of(*MEASURES)),
    "most": FieldKind({"type": "integer", "minimum": 1, "maximum": MOST_ROWS}, _most),
    "flag": FieldKind({"type": "string", "enum": ["yes", "no"]}, _flag),
}


def query_values(query: str) -> dict[str, Any]:
    """Return the values of a query: a list where a name is repeated. Raises CallError if it cannot be read."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:  # UnicodeDecodeError is one
        raise CallError(400, f"The query is not UTF-8, or has more than {MAX_FIELDS} fields.") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def body_values(body: bytes) -> dict[str, Any]:
    """Return the object of JSON in a body; an empty body is an empty object. Raises CallError if it is not one."""
    if not body.strip():
        return {}
    try:
        found = json.loads(body, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        doubled = f": {error}" if isinstance(error, _DoubledField) else ""
        raise CallError(400, f"The body is not valid JSON{doubled}.") from None
    if not isinstance(found, dict):
        raise CallError(422, f"Expected an object of JSON, not {shown(found)}.", [("", "expected an object")])
    return found


def read_fields(
    fields: Sequence[CallField], either: Sequence[Sequence[str]], given: Mapping[str, Any], *, is_query: bool
) -> dict[str, Any]:
    """Return the arguments of a call. A field that may be left out is not there if it was, or was null.

    Raises CallError with every field that is wrong.
    """
    known = {one.name: one for one in fields}
    wrong: list[WrongField] = []
    for name in given:
        if name not in known:
            hint = nearest(name, known) if known else "this call has no fields"
            wrong.append(WrongField(_cut(name), f"there is no such field: {hint}"))
    found: dict[str, Any] = {}
    for one in fields:
        value, kind = given.get(one.name), KINDS[one.kind]
        if value is None:
            if one.is_required:
                wrong.append(WrongField(one.name, "this field is missing"))
            continue
        try:
            if is_query and isinstance(value, list) and not kind.is_list:
                raise ValueError(f"expected one value, not {len(value)}")
            found[one.name] = kind.check(value)
        except ValueError as error:
            wrong.append(WrongField(one.name, str(error)))
    broken = {one.field for one in wrong}
    for names in either:
        count = sum(name in found or name in broken for name in names)
        if count != 1:
            text = f"give one of {' and '.join(names)}, not {'both' if count else 'neither'}"
            wrong.append(WrongField(names[0], text))
    if wrong:
        raise CallError(422, _sentence(wrong), wrong)
    return found


def _sentence(wrong: Sequence[WrongField]) -> str:
    """Return one sentence for everything that is wrong."""
    return "; ".join(f"{one.field}: {one.detail}" if one.field else one.detail for one in wrong[:20])[:4000]


def _cut(name: str) -> str:
    return name if len(name) <= 64 else f"{name[:64]}…"


class _DoubledField(ValueError):
    """An object has a field twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DoubledField("an object has a field twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")
