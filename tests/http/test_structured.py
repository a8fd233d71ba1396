"""Structured fields are written and read as an independent implementation does."""

from collections.abc import Callable
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.http.structured import MAX_INTEGER, Item, read_dictionary, read_list, write_integer, write_string
from tests.http.test_headers import sf

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30)
KEYS = st.from_regex(r"[a-z*][a-z0-9_.*-]{0,8}", fullmatch=True)
TOKENS = st.from_regex(r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]{0,12}", fullmatch=True).map(http_sf.Token)
BARE = st.one_of(
    st.integers(-MAX_INTEGER, MAX_INTEGER), PRINTABLE, st.booleans(), st.binary(max_size=20), TOKENS,
    st.decimals(-999_999_999_999, 999_999_999_999, places=3),
)  # fmt: skip
ITEMS = st.tuples(BARE, st.dictionaries(KEYS, BARE, max_size=4))
PIECES = st.lists(
    st.sampled_from(
        ['"a"', '"', "\\", ";", "=", ",", " ", "\t", "q", "r", "r=1", ";q=5", "1", "-", ".", "1.5", "?1", "?", ":YQ==:",
         ":", "(", ")", "tok", "*", "A", '"b";r=1;t=2', "@1", "%\"a\"", '%"%c3%a4"', '%"%ff"', ":=:", "\xff", "é"]
    ),
    max_size=10,
).map("".join)  # fmt: skip


def plain(value: object) -> object:
    return str(value) if isinstance(value, http_sf.Token) else value


@given(st.lists(ITEMS, min_size=1, max_size=5))
def test_a_list_that_another_wrote_is_read(items: list[tuple[Any, dict[str, Any]]]) -> None:
    text = http_sf.ser(list(items))
    expected = [Item(plain(value), {key: plain(v) for key, v in given.items()}) for value, given in items]  # type: ignore[arg-type,misc]
    assert read_list(text) == expected
    assert read_list(f"  {text} ") == expected
    assert read_list(text + ",") is None
    assert read_list(text + ", (1 2)") is None


@given(st.dictionaries(KEYS, ITEMS, min_size=1, max_size=5))
def test_a_dictionary_that_another_wrote_is_read(members: dict[str, tuple[Any, dict[str, Any]]]) -> None:
    expected = {
        key: Item(plain(value), {name: plain(v) for name, v in given.items()})  # type: ignore[arg-type,misc]
        for key, (value, given) in members.items()
    }
    assert read_dictionary(http_sf.ser(dict(members))) == expected


@given(st.one_of(PIECES, st.text(st.characters(max_codepoint=255), max_size=30)))
def test_both_refuse_the_same_texts(text: str) -> None:
    readers: list[tuple[Callable[[str], Any], str]] = [(read_list, "list"), (read_dictionary, "dict")]
    for read, kind in readers:
        if any(mark in text for mark in "(@\t"):  # inner lists are not ours; of the others only the form is
            read(text)
            continue
        try:
            theirs: Any = http_sf.parse(text.encode("latin-1"), tltype=kind)
        except http_sf.StructuredFieldError:
            theirs = None
        ours = read(text)
        assert (ours is None) == (theirs is None), text
        if ours is not None:
            assert len(ours) == len(theirs)


@given(PRINTABLE)
def test_printable_text_is_written_so_that_another_reads_it(text: str) -> None:
    assert sf(write_string(text), "item")[0] == text
    assert write_string(text) == http_sf.ser((text, {}))


@pytest.mark.parametrize("text", ["ä", "\n", "\x7f", "\x00", "a\r\nb", "日本", 5, None, b"x"])
def test_text_that_a_header_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        write_string(text)


@given(st.integers())
def test_a_number_is_cut_to_fifteen_digits(number: int) -> None:
    written = sf(write_integer(number), "item")[0]
    assert written == number if abs(number) <= MAX_INTEGER else abs(written) == MAX_INTEGER


def test_a_display_string_is_read_as_the_text_that_it_shows() -> None:
    assert read_list('%"f%c3%bc%c3%bc 100%25"') == [Item("füü 100%", {})]


@pytest.mark.parametrize("text", [":YWI:", ":YWI=:", ":YWJ=:"])
def test_padding_of_bytes_is_forgiven(text: str) -> None:
    assert read_list(text) == [Item(b"ab", {})]


@pytest.mark.parametrize(
    "text",
    [
        ":Y$==:", ":YWI", '"a', '"a\\b"', '"é"', "1234567890123456", "1.2345", "1.", "-", "a;B=1", 'a; \tb', "a ;b",
        "a;b= 1", "a,,b", ",a", "a,", "a b", "?2", "(a b)", "@1.5", "@", '%"%zz"',
        '%"%ff"', '%"%c3"', '%"%c3%28"', '%"%ed%a0%80"', '%"%C3%A4"', ":=:", ":==:", ":YWI==:", ":YWJj=:", ":Y:",
    ],
)  # fmt: skip
def test_a_malformed_list_is_no_list(text: str) -> None:
    assert read_list(text) is None


def test_the_last_of_equal_keys_counts() -> None:
    assert read_list("a;x=1;x=2") == [Item("a", {"x": 2})]
    assert read_dictionary("a=1, a=2, b;x") == {"a": Item(2, {}), "b": Item(True, {"x": True})}
    assert read_dictionary("a=1,") is None
    assert read_dictionary("=1") is None
    assert read_list("") == []


def test_large_fields_are_read() -> None:
    text = ", ".join(f'"{"n" * 1024}";{"k" * 64}=:{"QUFB" * 4096}:' for _ in range(8))
    assert len(read_list(text) or []) == 8
    assert len(read_list(", ".join(["1"] * 1024)) or []) == 1024
    assert len((read_list("1" + "".join(f";k{n}" for n in range(256))) or [])[0].parameters) == 256
