"""A parser for nginx's configuration: directives with their words, blocks and lines, without their meaning."""

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from ratebound.policy.problem import PolicyError, Problem

TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<mark>[{};])|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<word>(?!["'])(?:\$\{[^}]*\}|\\.|[^\s{};])+)""",
    re.DOTALL,
)
MAX_DEPTH = 30


class Directive(NamedTuple):
    """One directive: `name words;` or `name words { inner }`."""

    name: str
    words: tuple[str, ...]
    line: int
    inner: tuple["Directive", ...] | None = None

    def all(self, name: str) -> Iterator["Directive"]:
        """Return the directives of that name directly inside this one."""
        return (one for one in self.inner or () if one.name == name)


def parse_nginx(text: str) -> Directive:
    """Return the whole text as one block. Raises PolicyError with the line of an error."""
    reader = _NginxTokens(text)
    inner = reader.block(0)
    return Directive("", (), 1, inner)


class _NginxTokens:
    """A parser of one text that keeps its position and line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.line = 1

    def block(self, depth: int) -> tuple[Directive, ...]:
        """Return the directives up to the '}' that closes the block, or up to the end of the text at depth 0."""
        found: list[Directive] = []
        words: list[str] = []
        line = self.line
        if depth > MAX_DEPTH:
            self.fail("blocks are nested too deep")
        for token, is_mark in self.tokens():
            if not is_mark:
                line = line if words else self.line
                words.append(token)
            elif token == "}":
                if words or not depth:
                    self.fail("unexpected '}': is a ';' missing?")
                return tuple(found)
            elif not words and token == ";":
                continue
            elif not words:
                self.fail("'{' without a name before it")
            elif token == ";":
                found.append(Directive(words[0], tuple(words[1:]), line))
                words = []
            else:
                name = words[0]
                if name.endswith("_by_lua_block"):
                    self.skip_lua()
                else:
                    found.append(Directive(name, tuple(words[1:]), line, self.block(depth + 1)))
                words = []
        if words or depth:
            self.fail("unexpected end of the text: is a ';' or a '}' missing?")
        return tuple(found)

    def tokens(self) -> Iterator[tuple[str, bool]]:
        """Yield the tokens, each with True if it is one of `{};`."""
        while self.place < len(self.text):
            token = TOKEN.match(self.text, self.place)
            if token is None:
                self.fail("a quote is not closed")
            self.line += self.text.count("\n", self.place, token.end())
            self.place = token.end()
            if token.lastgroup is not None:
                yield token.group(token.lastgroup), token.lastgroup == "mark"

    def skip_lua(self) -> None:
        """Skip the rest of a block of Lua."""
        depth = 1
        while depth:
            if self.place >= len(self.text):
                self.fail("a block of Lua is not closed")
            mark = self.text[self.place]
            depth += (mark == "{") - (mark == "}")
            self.line += mark == "\n"
            self.place += 1

    def fail(self, why: str) -> NoReturn:
        """Raise PolicyError at the current line."""
        raise PolicyError([Problem((), f"cannot read this as nginx's configuration: {why}", self.line)])
