"""The readings of one path, and what one pattern says of one reading; what rules make of both: test_matching.py."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.policy.match.path import RUN, Mixed, Pattern, Segments, _composed, is_clean, spellings


@pytest.mark.parametrize(
    ("path", "readings"),
    [
        ("/", {()}),
        ("/Users/42", {("users", "42")}),
        ("/users/42/", {("users", "42")}),
        ("", {()}),
        ("*", {("*",)}),
        ("login", {("login",)}),
        ("//a//b//", {("a", "b"), ("b",), ()}),
        ("/./a", {(".", "a"), ("a",)}),
        ("/x/../A", {("x", "..", "a"), ("a",)}),
        ("/../a", {("..", "a"), ("a",)}),
        ("/a/b/..", {("a", "b", ".."), ("a",)}),
        ("/%61%2Fb", {("a/b",), ("%61%2fb",), ("a", "b")}),
        ("/%2561", {("%2561",), ("%61",), ("a",)}),
        ("/%252561", {("%252561",), ("%2561",), ("%61",)}),
        ("/a;x=1/b", {("a;x=1", "b"), ("a", "b")}),
        ("/a\\b", {("a\\b",), ("a", "b")}),
        ("/a. /b", {("a. ", "b"), ("a", "b")}),
        ("/a%00.css", {("a\0.css",), ("a%00.css",), ("a",)}),
        ("/a?b", {("a?b",), ("a",)}),
        ("/a#b", {("a#b",), ("a",)}),
        ("/a?b#c", {("a?b#c",), ("a?b",), ("a",)}),
        ("/a#b?c", {("a#b?c",), ("a#b",), ("a",)}),
        ("/a%3Fb", {("a%3fb",), ("a?b",), ("a",)}),
        ("x:/a", {("x:", "a"), ("a",)}),
        ("/x:/a;", {("x:", "a;"), ("a;",), ("x:", "a"), ("a",)}),
        ("//h/a", {("h", "a"), ("a",)}),
        ("http://h/a", {("http:", "h", "a"), ("h", "a"), ("a",)}),
        ("/STRA\xdfE", {("strasse",), ("stra\ufffde",)}),
        ("/stra\xc3\x9fe", {("stra\xe3\x9fe",), ("strasse",)}),
        ("/e\u0301", {("\xe9",)}),
        ("/\xc3%a9", {("\xe3\ufffd",), ("\ufffd%a9",), ("\xe3%a9",), ("\xe9",)}),
    ],
)
def test_a_path_has_these_readings_and_no_other(path: str, readings: set[Segments]) -> None:
    found = spellings(path)
    assert set(found) == readings
    assert len(found) == len(readings)


def test_no_more_than_three_things_are_taken_off_the_front_of_a_path() -> None:
    assert ("login",) in spellings("a:b:c:/login")
    assert ("login",) not in spellings("a:b:c:d:/login")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", True), ("/a/b.c/", True), ("/%61", True), ("/caf%C3%A9", True), ("/café", True), ("/a./b", True),
        ("/...", True), ("", False), ("*", False), ("a", False), ("é/.", False), ("//", False), ("/a//b", False),
        ("/a\\b", False), ("/a;b", False), ("/a?b", False), ("/a#b", False), ("/a%2fb", False), ("/a%5Cb", False),
        ("/a%2e", False), ("/a%25", False), ("/a%3b", False), ("/a%3F", False), ("/a%23", False), ("/a%00", False),
        ("/a%7f", False), ("/./a", False), ("/a/..", False), ("/./.", False),
    ],
)  # fmt: skip
def test_a_path_is_clean_if_every_server_reads_it_alike(path: str, expected: bool) -> None:
    assert is_clean(path) is expected


@pytest.mark.parametrize(
    ("pattern", "reading", "expected"),
    [
        ("/", (), True),
        ("/", ("a",), False),
        ("/a", ("a",), True),
        ("/a", ("b",), False),
        ("/A", ("a",), True),
        ("/caf%C3%A9", ("café",), True),
        ("/a b", ("a b",), True),
        ("/{x}", ("a",), True),
        ("/{x}", ("",), False),
        ("/{x}", (), False),
        ("/*/b", ("a", "b"), True),
        ("/*/b", ("a", "c"), False),
        ("/{x}", ("a", "b"), False),
        ("/V{n}", ("v1",), True),
        ("/v{n}", ("v",), False),
        ("/a/{rest*}", ("a",), True),
        ("/a/{rest*}", ("a", "b", "c"), True),
        ("/a/b/**", ("a",), False),
        ("/**", (), True),
    ],
)
def test_a_pattern_matches_a_reading_of_a_path(pattern: str, reading: Segments, expected: bool) -> None:
    assert Pattern(pattern).matches(reading) is expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/", "/", True),
        ("/Users/{id}", "/Users/7", True),
        ("/Users/{id}", "/Users/7/", True),
        ("/Users/{id}", "/users/7", False),
        ("/Users/{id}", "/Users/", False),
        ("/a%62", "/a%62", True),
        ("/a%62", "/ab", False),
        ("/V{n}", "/V1", True),
        ("/V{n}", "/v1", False),
        ("/a/**", "/a/B/c", True),
    ],
)
def test_a_path_is_exact_only_in_the_spelling_of_the_pattern(pattern: str, path: str, expected: bool) -> None:
    assert Pattern(pattern).is_exact(path) is expected


def test_a_parameter_that_is_a_whole_segment_is_no_mixture() -> None:
    assert Pattern("/{x}/*/a").segments == [None, None, "a"]


def test_a_pattern_is_shown_as_it_was_written() -> None:
    assert repr(Pattern("/Users/{id}")) == "Pattern('/Users/{id}')"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("login", "must begin with '/'"),
        ("/a\x1fb", "can never match"),
        ("/a?b", "can never match"),
        ("/a#b", "can never match"),
        ("/a\\b", "can never match"),
        ("/a;b", "can never match"),
        ("/a//b", "can never match"),
        ("/./a", "are resolved first"),
        ("/a/..", "are resolved first"),
        ("/a**", "cannot read 'a\\*\\*'"),
        ("/{a", "cannot read '{a'"),
        ("/a}", "cannot read 'a}'"),
        ("/{b*}/c", "cannot read '{b\\*}'"),
    ],
)
def test_a_pattern_that_cannot_be_meant_says_why(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Pattern(text)


@pytest.mark.parametrize(
    ("pieces", "segment", "expected"),
    [
        (("v", ""), "v1", True),
        (("v", ""), "v", False),
        (("v", ""), "w1", False),
        (("", ".pdf"), "a.pdf", True),
        (("", ".pdf"), ".pdf", False),
        (("", ".pdf"), "a.txt", False),
        (("a", "a"), "a", False),
        (("a", "a"), "aa", False),
        (("a", "a"), "aba", True),
        (("", "-", ""), "a-b", True),
        (("", "-", ""), "-b", False),
        (("", "-", ""), "a-", False),
        (("", "-", ""), "ab", False),
        (("", "-", ""), "--b", True),
        (("a", "b", "c"), "a1b2c", True),
        (("a", "b", "c"), "ab2c", False),
        (("a", "bb", "c"), "a1bbc", False),
        (("a", "b", "b"), "a1b", False),
        (("", "a", "a", ""), "1a2a3", True),
        (("", "a", "a", ""), "1aa3", False),
        (("", "aa", "b", ""), "1aab3", False),
    ],
)
def test_a_mixed_segment_has_its_literals_in_order_with_something_between(
    pieces: tuple[str, ...], segment: str, expected: bool
) -> None:
    assert Mixed(pieces).matches(segment) is expected


@given(st.lists(st.text("ab.", max_size=2), min_size=2, max_size=4), st.text("ab.", max_size=8))
def test_a_mixed_segment_matches_as_its_expression_does(pieces: list[str], segment: str) -> None:
    expected = re.fullmatch(".+".join(map(re.escape, pieces)), segment) is not None
    assert Mixed(tuple(pieces)).matches(segment) is expected


@pytest.mark.parametrize("front", range(RUN + 2))
@pytest.mark.parametrize(
    "letter", ["e\u0301", "\u1100\u1161", "\u1112\u1175\u11c2", "\u1100\u1161\u11a8", "o\u0302\u0301"]
)
def test_a_letter_is_composed_wherever_it_stands_in_a_long_text(letter: str, front: int) -> None:
    for text in ("x" * front + letter, "x" * (front + RUN) + letter + "y" * RUN, "x" * front + letter * 3 * RUN):
        assert _composed(text) == unicodedata.normalize("NFC", text)


def test_marks_without_end_are_composed_some_at_a_time() -> None:
    letters = "\u0315\u0300" * 2 * RUN
    parts = [letters[: 2 * RUN], letters[2 * RUN :]]
    assert _composed(letters) == "".join(unicodedata.normalize("NFC", part) for part in parts)
    assert _composed(letters) != unicodedata.normalize("NFC", letters)
