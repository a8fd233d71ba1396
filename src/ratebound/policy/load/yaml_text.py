"""Parsing of YAML with the line of every value. The only file that imports PyYAML."""

import re
from typing import Any

from ratebound.policy.load.document import GIVEN_TWICE
from ratebound.policy.problem import Place, PolicyError, Problem

try:
    import yaml
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        'PyYAML is not installed, and a policy in YAML needs it. Run: pip install "ratebound[policy]"; or write the'
        " policy in JSON or TOML"
    ) from None

MAX_DEPTH = 30
MAX_NODES = 200_000
NUMBER = re.compile("-?(?:0|[1-9][0-9]{0,17})")
TEXT = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"
SCALARS = {
    TEXT,
    MERGE,
    *(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "timestamp", "value")),
}


def parse_yaml(text: str) -> tuple[Any, dict[Place, int]]:
    """Return the values of a text, and the line of each by its place. Raises PolicyError for invalid YAML, for a key
    given twice, and for aliases that expand to more than MAX_NODES values."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[Place, int] = {}
        return (None, lines) if node is None else (_YamlReader(lines).value(node, ()), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise PolicyError(
            [Problem((), f"cannot read this as YAML: {reason}", None if mark is None else mark.line + 1)]
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or "nested too deep"
        raise PolicyError([Problem((), f"cannot read this as YAML: {reason}")]) from None


class _YamlReader:
    """A reader of YAML nodes that notes the line of each value."""

    def __init__(self, lines: dict[Place, int]) -> None:
        self.lines = lines
        self._nodes = 0

    def value(self, node: Any, place: Place) -> Any:
        """Return the value of a node."""
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._nodes += 1
        if len(place) > MAX_DEPTH or self._nodes > MAX_NODES:
            expected = f"expected at most {MAX_DEPTH} levels and {MAX_NODES} values"
            raise PolicyError([Problem(place[:3], f"nested too deep, or too large for a policy: {expected}", line)])
        if isinstance(node, yaml.SequenceNode):
            return [self.value(one, (*place, index)) for index, one in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if node.tag not in SCALARS:
            raise PolicyError([Problem(place, f"cannot read a value with the tag {node.tag!r}: remove the tag", line)])
        return node.value if node.style or node.tag == TEXT else _scalar(node.value)

    def mapping(self, node: Any, place: Place) -> dict[str, Any]:
        """Return the keys and values of a mapping, with those that `<<` adds."""
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise PolicyError([Problem(place, "a key must be a plain string, not a list or a mapping", line)])
            key = str(key_node.value)  # as written: 'on' and '42' are strings here
            if key_node.tag == MERGE:
                merged = {**self.merge(value_node, place, line), **merged}
                continue
            if key in found:
                raise PolicyError([Problem((*place, key), GIVEN_TWICE, line)])
            self.lines[(*place, key)] = line
            found[key] = self.value(value_node, (*place, key))
        return {**merged, **found}

    def merge(self, node: Any, place: Place, line: int) -> dict[str, Any]:
        """Return the keys that `<<` adds: those of a mapping, or of several, of which the first wins."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Any] = {}
        for one in nodes:
            if not isinstance(one, yaml.MappingNode):
                raise PolicyError([Problem(place, "'<<' expects a mapping or a list of mappings", line)])
            found = {**self.mapping(one, place), **found}
        return found


def _scalar(text: str) -> Any:
    """Return the value of an unquoted scalar by the rules of YAML 1.2: `on` and `no` are strings. `1.10` and `007` stay
    as they are written."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.upper(), text.capitalize()):
        return text.lower() == "true"
    return int(text) if NUMBER.fullmatch(text) else text
