"""What a request costs, where one request is many: batches of JSON, and GraphQL with its aliases and fragments.

Both look at the body, which an adapter reads only for functions that ask for it, by an attribute `reads_body`. What
cannot be read costs 1: the application will refuse it by itself.
"""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from ratekeeper.policy.request import RequestView

MAX_BODY = 1_000_000  # bytes: what is larger costs what nobody has
MAX_COST = 1_000_000
MAX_DEPTH = 200
GRAPHQL_TOKEN = re.compile(
    r'#[^\n]*|"""(?:\\"""|.)*?"""|"(?:[^"\\\n]|\\.)*"|\.\.\.|[{}()@:]|[_A-Za-z][_0-9A-Za-z]*', re.DOTALL
)


def json_batch_cost(request: RequestView) -> int:
    """The number of calls in a JSON-RPC batch, or of elements in any JSON array; 1 for anything else."""
    body = _body(request)
    return max(len(body), 1) if isinstance(body, list) else body if isinstance(body, int) and body else 1


def graphql_cost(request: RequestView) -> int:
    """The number of fields that a GraphQL request selects, aliases each by itself and fragments wherever they are
    spread; batched queries together. Introspection by `__typename` counts like any field."""
    total = sum(query_cost(query) for query in parse_qs(request.query[:MAX_BODY]).get("query", ()))
    body = _body(request)
    for one in body if isinstance(body, list) else [body]:
        query = one.get("query") if isinstance(one, dict) else one
        total += query_cost(query) if isinstance(query, str) else one if isinstance(one, int) else 1
    return min(max(total, 1), MAX_COST)


def query_cost(query: str) -> int:
    """Fields selected by the operations of one document. A fragment that spreads itself is beyond counting."""
    fragments: dict[str, tuple[int, list[str]]] = {}
    operations: list[tuple[int, list[str]]] = []
    tokens = _tokens(query)
    named = ""
    before = ""
    for token in tokens:
        if before == "fragment":
            named = token
        elif token == "{":
            selection = _selection(tokens)
            if named:
                fragments[named] = selection
            else:
                operations.append(selection)
            named = ""
        elif token == "(":
            _skip(tokens)
        before = token
    sizes: dict[str, int] = {}
    return min(max(sum(_size(one, fragments, sizes, 0) for one in operations), 1), MAX_COST)


def _selection(tokens: Iterator[str]) -> tuple[int, list[str]]:
    """Fields and the names of spread fragments, from behind a '{' to its '}'."""
    fields, spreads = 0, []
    depth, before = 1, "{"
    for token in tokens:
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if not depth:
                break
        elif token == "(":
            _skip(tokens)
            continue  # `before` stays: the arguments belong to the name in front of them
        elif token[0].isalpha() or token[0] == "_":
            if before == "...":
                if token != "on":
                    spreads.append(token)
            elif before == ":":
                pass  # the name behind an alias, which was counted
            elif before not in ("@", "on"):
                fields += 1
        before = token
    return fields, spreads


def _size(
    selection: tuple[int, list[str]], fragments: dict[str, tuple[int, list[str]]], sizes: dict[str, int], depth: int
) -> int:
    fields, spreads = selection
    if depth > MAX_DEPTH:
        return MAX_COST
    for name in spreads:
        if name not in sizes:
            sizes[name] = MAX_COST  # what it counts as while it is being counted: a cycle
            sizes[name] = _size(fragments.get(name, (1, [])), fragments, sizes, depth + 1)
        fields += sizes[name]
    return min(fields, MAX_COST)


def _tokens(query: str) -> Iterator[str]:
    return (found for found in GRAPHQL_TOKEN.findall(query) if found[0] not in '#"')


def _skip(tokens: Iterator[str]) -> None:
    """Over arguments, to the ')' that closes them."""
    depth = 1
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if not depth:
            return


def _body(request: RequestView) -> Any:
    """The body as JSON, or as text if it is none; a number if that is already the cost."""
    if not request.body:
        return 0
    if len(request.body) > MAX_BODY:
        return MAX_COST
    try:
        body = json.loads(request.body)
    except RecursionError:
        return MAX_COST
    except ValueError:
        return request.body.decode("utf-8", "replace")
    return 1 if isinstance(body, int | float) else body


# An adapter reads the body for functions that say so.
json_batch_cost.reads_body = graphql_cost.reads_body = True  # type: ignore[attr-defined]
