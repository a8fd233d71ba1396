"""The messages of Envoy's rate limit service: the same bytes as Envoy's own, whatever a client sends."""

from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ratebound.service import envoy_messages
from ratebound.service.envoy_messages import RateLimitRequest, RateLimitResponse, current_limit, response, status

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def test_a_request_of_envoy_is_read() -> None:
    written = bytes.fromhex(
        "0a0465646765"  # domain: edge
        "121d0a1b0a0e72656d6f74655f6164647265737312093132372e302e302e31"  # remote_address: 127.0.0.1
        "121b0a0d0a076170695f6b657912026b31"  # api_key: k1
        "1204082a10031a0208032001"  # with 42 per hour, 3 hits, negative
        "1807"  # hits_addend: 7
    )
    request = RateLimitRequest.FromString(written)
    address, key = request.descriptors
    assert (request.domain, request.hits_addend) == (b"edge", 7)
    assert [(entry.key, entry.value) for entry in address.entries] == [(b"remote_address", b"127.0.0.1")]
    assert not address.HasField("hits_addend")
    assert not address.HasField("limit")
    assert (key.limit.requests_per_unit, key.limit.unit) == (42, 3)
    assert (key.hits_addend.value, key.is_negative_hits) == (3, True)


def test_hits_of_zero_are_not_the_same_as_none() -> None:
    request = RateLimitRequest()
    request.descriptors.add().hits_addend.value = 0
    assert RateLimitRequest.FromString(request.SerializeToString()).descriptors[0].HasField("hits_addend")


def test_values_that_are_no_text_are_read_as_they_are() -> None:
    written = b"\x0a\x01e\x12\x0b\x0a\x09\x0a\x03key\x12\x02\xff\xfe"
    assert RateLimitRequest.FromString(written).descriptors[0].entries[0].value == b"\xff\xfe"


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    assert RateLimitRequest.FromString(b"\x0a\x01e\xfa\x06\x03abc").domain == b"e"


@pytest.mark.parametrize("written", [b"\x0a\x09e", b"\xff", b"\x12\x02\x0a\x05"])
def test_a_broken_message_is_refused(written: bytes) -> None:
    with pytest.raises(DecodeError):
        RateLimitRequest.FromString(written)


def test_the_messages_do_not_meet_those_of_other_programs() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(f"{envoy_messages.PACKAGE}.RateLimitRequest")


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), NUMBERS, st.integers(0, 7), TEXTS, NUMBERS, st.none() | NUMBERS)),
    st.lists(st.tuples(TEXTS, TEXTS)),
    st.binary(max_size=300),
)
def test_a_response_is_written_as_protobuf_writes_it(
    statuses: list[Any], headers: list[tuple[str, str]], body: bytes
) -> None:
    made = RateLimitResponse(overall_code=2, raw_body=body)
    written = b""
    for code, count, unit, name, remaining, seconds in statuses:
        one = made.statuses.add(code=code, limit_remaining=remaining)
        one.current_limit.requests_per_unit, one.current_limit.unit, one.current_limit.name = count, unit, name
        if seconds is not None:
            one.duration_until_reset.seconds = seconds
        written += status(code, current_limit(count, unit, name), remaining, seconds)
    for key, value in headers:
        made.response_headers_to_add.add(key=key, value=value)
    assert RateLimitResponse.FromString(response(2, written, headers, body)) == made


def test_numbers_that_do_not_fit_are_sent_as_the_largest() -> None:
    written = response(1, status(1, current_limit(2**40, 1, "a"), 2**40, 5))
    (one,) = RateLimitResponse.FromString(written).statuses
    assert one.limit_remaining == one.current_limit.requests_per_unit == 2**32 - 1
