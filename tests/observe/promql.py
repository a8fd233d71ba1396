"""As much of PromQL as it takes to see which metrics and labels an expression asks for. No check of types: that would
take Prometheus' own promtool."""

import re

FUNCTIONS = {"rate", "increase", "sum", "max", "min", "topk", "histogram_quantile", "label_values"}
WORDS = {"by", "without", "and", "or", "unless", "on", "ignoring"}
GROUPING = {"by", "without", "on", "ignoring"}
TOKEN = re.compile(
    r"""\s+ | (?P<text>"(?:[^"\\]|\\.)*") | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
      | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*) | (?P<number>\d+(?:\.\d+)?)
      | (?P<mark>=~|!~|!=|>=|<=|==|[-+*/<>=(){},])""",
    re.VERBOSE,
)
CLOSES = {")": "(", "}": "{"}


class Wrong(Exception):
    """An expression that Prometheus would refuse."""


def tokens(expression: str) -> list[str]:
    found, place = [], 0
    while place < len(expression):
        match = TOKEN.match(expression, place)
        if match is None:
            raise Wrong(f"cannot read {expression[place:]!r}")
        if match.lastgroup:
            found.append(match.group())
        place = match.end()
    return found


def asked_for(expression: str) -> list[tuple[str, dict[str, str], bool]]:
    """(metric, its matchers, whether it is taken over a range), and under "" the labels that are grouped by."""
    read, open_marks, found = tokens(expression), [], list[tuple[str, dict[str, str], bool]]()
    for i, token in enumerate(read):
        after = read[i + 1] if i + 1 < len(read) else ""
        if token in ("(", "{"):
            grouping = token == "(" and i > 0 and read[i - 1] in GROUPING
            open_marks.append("by" if grouping else token)
        elif token in CLOSES:
            if not open_marks or open_marks.pop() not in (CLOSES[token], "by" if token == ")" else ""):
                raise Wrong(f"a bracket too many in {expression!r}")
        elif re.match(r"[A-Za-z_:]", token):
            inside = open_marks[-1] if open_marks else ""
            if inside == "by":
                found.append(("", {token: ""}, False))
            elif inside == "{":
                found[-1][1][token] = read[i + 2].strip('"')
            elif token in FUNCTIONS | WORDS:
                continue
            elif after == "(":
                raise Wrong(f"unknown function {token} in {expression!r}")
            else:
                rest = read[i + 1 :]
                if after == "{" and "}" in rest:
                    rest = rest[rest.index("}") + 1 :]
                found.append((token, {}, bool(rest) and rest[0].startswith("[")))
    if open_marks:
        raise Wrong(f"a bracket too few in {expression!r}")
    return found
