"""The messages of Envoy's rate limit service, version 3, made when this module is imported.

They are wire compatible with Envoy's own, and stand in a pool of their own under a name of ours: a program that also
imports Envoy's generated messages has no conflict. Text that a client may choose (keys and values of descriptors) is
declared as bytes, which look the same on the wire: Envoy passes on header values that are not UTF-8, and a request that
could not be parsed would go past its limits.

Requests are parsed by protobuf. Responses are written here, field by field, in a third of the time that it takes to
fill in a message: most of their bytes are the same in each response.
"""

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD: Final = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
PACKAGE = "ratebound.envoy"

# Codes of a response and of a descriptor's status
UNKNOWN: Final = 0
OK: Final = 1
OVER_LIMIT: Final = 2
CODE_NAMES: Final = {UNKNOWN: "UNKNOWN", OK: "OK", OVER_LIMIT: "OVER_LIMIT"}

# Units of time, by number: those of an override, and of the limit in a status. Overrides have no week.
UNIT_NUMBERS: Final = {"second": 1, "minute": 2, "hour": 3, "day": 4, "month": 5, "year": 6, "week": 7}
UNIT_NAMES: Final = {number: name for name, number in UNIT_NUMBERS.items()}

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "enum": _Field.TYPE_INT32,  # an enum is a varint; numbers that we do not know must not fail
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}

# The fields of each message: name, number and type. A star marks a repeated field. Names of types in capitals are
# messages of this table.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Duration": (("seconds", 1, "int64"), ("nanos", 2, "int32")),
    "Timestamp": (("seconds", 1, "int64"), ("nanos", 2, "int32")),
    "HitsAddend": (("value", 1, "uint64"),),
    "Entry": (("key", 1, "bytes"), ("value", 2, "bytes")),
    "RateLimitOverride": (("requests_per_unit", 1, "uint32"), ("unit", 2, "enum")),
    "RateLimitDescriptor": (
        ("entries", 1, "*Entry"),
        ("limit", 2, "RateLimitOverride"),
        ("hits_addend", 3, "HitsAddend"),
        ("is_negative_hits", 4, "bool"),
    ),
    "RateLimitRequest": (
        ("domain", 1, "bytes"),
        ("descriptors", 2, "*RateLimitDescriptor"),
        ("hits_addend", 3, "uint32"),
    ),
    "CurrentLimit": (("requests_per_unit", 1, "uint32"), ("unit", 2, "enum"), ("name", 3, "string")),
    "Quota": (("requests", 1, "uint32"), ("valid_until", 2, "Timestamp"), ("id", 3, "string")),
    "DescriptorStatus": (
        ("code", 1, "enum"),
        ("current_limit", 2, "CurrentLimit"),
        ("limit_remaining", 3, "uint32"),
        ("duration_until_reset", 4, "Duration"),
        ("quota", 5, "Quota"),
    ),
    "HeaderValue": (("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
    "RateLimitResponse": (
        ("overall_code", 1, "enum"),
        ("statuses", 2, "*DescriptorStatus"),
        ("response_headers_to_add", 3, "*HeaderValue"),
        ("request_headers_to_add", 4, "*HeaderValue"),
        ("raw_body", 5, "bytes"),
        ("dynamic_metadata", 6, "bytes"),  # a serialized google.protobuf.Struct
        ("quota", 7, "Quota"),
    ),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="ratebound/envoy.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, written in fields:
            kind = written.removeprefix("*")
            label = _Field.LABEL_REPEATED if kind != written else _Field.LABEL_OPTIONAL
            if kind in _TYPES:
                message.field.add(name=field, number=number, label=label, type=_TYPES[kind])
            else:
                place = f".{PACKAGE}.{kind}"
                message.field.add(name=field, number=number, label=label, type=_Field.TYPE_MESSAGE, type_name=place)
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_file().SerializeToString())
_classes: dict[str, Any] = {
    name: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
}

RateLimitRequest: Any = _classes["RateLimitRequest"]
RateLimitResponse: Any = _classes["RateLimitResponse"]

_CODES: Final = (b"\x08\x00", b"\x08\x01", b"\x08\x02")
_SMALL: Final = [bytes((number,)) for number in range(128)]
_MOST: Final = 2**32 - 1  # what fits in a uint32


def varint(number: int) -> bytes:
    """Return a number of 0 or more as protobuf writes it."""
    if number < 128:
        return _SMALL[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _part(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


# Names of headers that most responses have, as they are written
_NAMES: Final = {name: _part(b"\x0a", name.encode()) for name in ("RateLimit", "RateLimit-Policy", "Retry-After")}


def current_limit(requests_per_unit: int, unit: int, name: str) -> bytes:
    """Return the field `current_limit` of a status. Numbers that do not fit are sent as the largest that does."""
    written = b"\x08" + varint(min(requests_per_unit, _MOST))
    if unit:
        written += b"\x10" + varint(unit)
    return _part(b"\x12", written + _part(b"\x1a", name.encode()))


def status(code: int, limit: bytes = b"", remaining: int = 0, seconds: int | None = None) -> bytes:
    """Return one of the `statuses` of a response. `limit` is what `current_limit` returned."""
    written = _CODES[code] + limit
    if remaining > 0:
        written += b"\x18" + (_SMALL[remaining] if remaining < 128 else varint(min(remaining, _MOST)))
    if seconds is not None:
        written += b"\x22\x02\x08" + _SMALL[seconds] if seconds < 128 else _part(b"\x22", b"\x08" + varint(seconds))
    length = len(written)
    return b"\x12" + (_SMALL[length] if length < 128 else varint(length)) + written


def response(code: int, statuses: bytes, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> bytes:
    """Return a RateLimitResponse. `statuses` are joined, and `headers` are added to the response to the client."""
    written = [_CODES[code], statuses]
    for key, value in headers:
        name = _NAMES.get(key) or _part(b"\x0a", key.encode())
        text = value.encode()
        inner = b"%b\x12%b%b" % (name, varint(len(text)), text)
        written += b"\x1a", varint(len(inner)), inner
    if body:
        written.append(_part(b"\x2a", body))
    return b"".join(written)
