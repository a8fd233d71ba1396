"""YAML and JSON with the line of every value: the one file that imports PyYAML."""

import re
from typing import Any

from ratebound.policy.problem import Place, PolicyError, Problem

try:
    import yaml
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "a policy in YAML needs PyYAML: install Ratebound with its extra [policy], or write it in JSON or TOML"
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
    """The values, and the line of each by its place. Keys that are given twice are refused, and so are aliases that
    make much out of little."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[Place, int] = {}
        return (None, lines) if node is None else (_YamlReader(lines).value(node, ()), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise PolicyError(
            [Problem((), f"cannot read this as YAML: {said}", None if mark is None else mark.line + 1)]
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        said = str(error).partition("\n")[0] or "nested too deeply"
        raise PolicyError([Problem((), f"cannot read this as YAML: {said}")]) from None


class _YamlReader:
    def __init__(self, lines: dict[Place, int]) -> None:
        self.lines = lines
        self._nodes = 0

    def value(self, node: Any, place: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._nodes += 1
        if len(place) > MAX_DEPTH or self._nodes > MAX_NODES:
            raise PolicyError([Problem(place[:3], "too deep or too large for a policy", line)])
        if isinstance(node, yaml.SequenceNode):
            return [self.value(one, (*place, index)) for index, one in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if node.tag not in SCALARS:
            raise PolicyError([Problem(place, f"cannot read a value with the tag {node.tag!r}", line)])
        return node.value if node.style or node.tag == TEXT else _scalar(node.value)

    def mapping(self, node: Any, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise PolicyError([Problem(place, "a key must be plain text", line)])
            key = str(key_node.value)  # as written: 'on' and '42' are text here
            if key_node.tag == MERGE:
                merged = {**self.merged(value_node, place, line), **merged}
                continue
            if key in found:
                raise PolicyError([Problem((*place, key), "is given twice", line)])
            self.lines[(*place, key)] = line
            found[key] = self.value(value_node, (*place, key))
        return {**merged, **found}

    def merged(self, node: Any, place: Place, line: int) -> dict[str, Any]:
        """What `<<` brings in: a mapping, or several of which the first wins."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Any] = {}
        for one in nodes:
            if not isinstance(one, yaml.MappingNode):
                raise PolicyError([Problem(place, "'<<' takes a mapping, or a list of them", line)])
            found = {**self.mapping(one, place), **found}
        return found


def _scalar(text: str) -> Any:
    """As YAML 1.2 has it: `on` and `no` are words, `1.10` stays as it is written, `007` too."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.upper(), text.capitalize()):
        return text.lower() == "true"
    return int(text) if NUMBER.fullmatch(text) else text
