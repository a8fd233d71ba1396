"""Parsing of a policy's text into plain values with their line numbers: JSON and TOML here, YAML in yaml_text.py."""

import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any

from ratebound.policy.problem import Place, PolicyError, Problem

Lines = dict[Place, int]

SUFFIXES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
MAX_TEXT = 4_000_000  # characters
GIVEN_TWICE = "is given twice: remove one of the two"
JSON_TOKEN = re.compile(r'[{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+', re.DOTALL)
TOML_TABLE = re.compile(r"\s*(\[\[?)([^\]]+)\]\]?\s*(?:#.*)?")
TOML_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")

# A dotted key with more parts than any policy has. tomllib takes quadratic time for such keys.
TOML_DEEP = re.compile(r"""(?m:^|[{,\[])[ \t]*(?:(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")


def parse(text: str, format: str) -> tuple[Any, Lines]:
    """Return the values of a text, and the line of each by its place. Raises PolicyError with the line of the error if
    the text cannot be parsed, is too large, or has a key twice."""
    if len(text) > MAX_TEXT:
        raise PolicyError([Problem((), f"the policy has {len(text)} characters: expected at most {MAX_TEXT}")])
    if format == "yaml":
        from ratebound.policy.load.yaml_text import parse_yaml

        return parse_yaml(text)
    if format not in ("json", "toml"):
        raise PolicyError([Problem((), f"unknown format {format!r}: expected yaml, json or toml")])
    deep = TOML_DEEP.search(text) if format == "toml" else None
    if deep is not None:
        line_number = text.count("\n", 0, deep.start()) + 1
        raise PolicyError([Problem((), "cannot read this as TOML: a key is nested too deep", line_number)])
    try:
        return _parse_json(text) if format == "json" else (tomllib.loads(text), _toml_lines(text))
    except PolicyError:
        raise
    except json.JSONDecodeError as error:
        raise PolicyError([Problem((), f"cannot read this as JSON: {error.msg}", error.lineno)]) from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found.group(1)) if found else None
        raise PolicyError([Problem((), f"cannot read this as TOML: {error}", line)]) from None
    except (RecursionError, ValueError) as error:
        raise PolicyError([Problem((), f"cannot read this as {format.upper()}: {error}")]) from None


def _parse_json(text: str) -> tuple[Any, Lines]:
    tree = json.loads(text, object_pairs_hook=_Pairs)
    lines: Lines = {}
    _JsonLines(text, lines).value(())
    return _plain(tree, (), lines), lines


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object as pairs, before duplicate keys are looked for."""


def _plain(value: Any, place: Place, lines: Lines) -> Any:
    if isinstance(value, _Pairs):
        found: dict[str, Any] = {}
        for key, one in value:
            if key in found:
                raise PolicyError([Problem((*place, key), GIVEN_TWICE, lines.get((*place, key)))])
            found[key] = _plain(one, (*place, key), lines)
        return found
    if isinstance(value, list):
        return [_plain(one, (*place, index), lines) for index, one in enumerate(value)]
    return value


class _JsonLines:
    """A walk over well-formed JSON that notes the line of each value."""

    def __init__(self, text: str, lines: Lines) -> None:
        self.lines = lines
        self.line, self._place = 1, 0
        self._text = text
        self._tokens = JSON_TOKEN.finditer(text)

    def _next(self) -> str:
        token = next(self._tokens)
        self.line += self._text.count("\n", self._place, token.start())
        self._place = token.start()
        return token.group()

    def value(self, place: Place) -> None:
        """Read one value and note its line, and those of the values inside it."""
        self._value(self._next(), place)

    def _value(self, token: str, place: Place) -> None:
        self.lines.setdefault(place, self.line)
        if token == "{":
            while (token := self._next()) != "}":
                if token != ",":
                    key = (*place, json.loads(token))
                    self.lines[key] = self.line
                    self._next()  # the colon
                    self.value(key)
        elif token == "[":
            index = 0
            while (token := self._next()) != "]":
                if token != ",":
                    self._value(token, (*place, index))
                    index += 1


def _toml_lines(text: str) -> Lines:
    """Return the lines on which tables and keys begin. Values inside arrays and inline tables have no line of their
    own; the loader uses that of the array or table."""
    lines: Lines = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    for number, line in enumerate(text.splitlines(), 1):
        head = TOML_TABLE.fullmatch(line)
        if head is not None:
            names = _toml_names(head.group(2))
            table = _table_place(names if head.group(1) == "[" else names[:-1], counts)
            if head.group(1) == "[[":
                array = (*table, names[-1])
                counts[array] = counts.get(array, -1) + 1
                table = (*array, counts[array])
            lines.setdefault(table, number)
        elif (key := TOML_KEY.match(line)) is not None:
            lines.setdefault((*table, *_toml_names(key.group(1))), number)
    return lines


def _toml_names(text: str) -> list[str]:
    return [name.strip().strip("\"'") for name in re.findall(r""""[^"]*"|'[^']*'|[^."']+""", text) if name.strip()]


def _table_place(names: Iterable[str], counts: dict[Place, int]) -> Place:
    """Return the place of a table. The name of an array means its last element."""
    place: Place = ()
    for name in names:
        place = (*place, name)
        if place in counts:
            place = (*place, counts[place])
    return place
