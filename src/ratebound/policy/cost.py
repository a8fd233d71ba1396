"""Cost functions for requests that carry several operations: JSON batches and GraphQL documents.

Both read the body. An adapter reads the body only for functions whose attribute `reads_body` is true.

A body that cannot be parsed here costs MAX_COST, which exceeds every sensible limit, so the request is denied. If it
cost 1, a client could send a whole batch for the price of one request in an encoding that only the application parses.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from ratebound.policy.match.request import RequestView
from ratebound.policy.match.request_body import FORM, MULTIPART, parse_json, parts_of, plain_body
from ratebound.policy.match.request_body import MAX_BODY as MAX_BODY  # a larger body costs MAX_COST

MAX_QUERY = 100_000  # characters of all documents of one request; more cost MAX_COST
MAX_COST = 1_000_000
MAX_DEPTH = 200
# No alternative backtracks, so a document is read in one pass. A lone `"` or `"""` token is an unterminated string.
GRAPHQL_TOKEN = re.compile(
    r'#[^\r\n]*|"""(?:[^"\\]|\\"""|\\(?!""")|"(?!""))*"""|"""|"(?:[^"\\\r\n]|\\[^\r\n])*"|"'
    r"|\.\.\.|[{}()@:]|[_A-Za-z][_0-9A-Za-z]*"
)

Selection = tuple[int, list[str]]  # the number of fields, and the fragments that are spread


def json_batch_cost(request: RequestView) -> int:
    """Return the number of calls in a JSON-RPC batch, or of elements in any JSON array; 1 for other JSON and for no
    body."""
    try:
        body = _parse_json(plain_body(request))
    except ValueError:
        return MAX_COST
    return min(max(len(body), 1), MAX_COST) if isinstance(body, list) else 1


def graphql_cost(request: RequestView) -> int:
    """Return the number of fields that a GraphQL request selects.

    Each alias counts, a fragment counts wherever it is spread, and the queries of a batch are added up. `__typename`
    counts like any field. Queries are read from the query string and from a body of JSON, a form, multipart or plain
    GraphQL. A reference to a persisted query costs 1.
    """
    try:
        queries = _queries_in_form(request.query)
        others = _collect_from_body(request, queries)
    except ValueError:
        return MAX_COST
    if sum(map(len, queries)) > MAX_QUERY:
        return MAX_COST
    return min(max(others + sum(map(query_cost, queries)), 1), MAX_COST)


def query_cost(query: str) -> int:
    """Return the number of fields that the operations of one document select. It is MAX_COST for a fragment that
    spreads itself and for a document that ends inside a string or inside arguments."""
    if len(query) > MAX_QUERY:
        return MAX_COST
    try:
        operations, fragments = _parse_document(query)
    except ValueError:
        return MAX_COST
    sizes: dict[str, int] = {}
    return min(max(sum(_size(one, fragments, sizes, 0) for one in operations), 1), MAX_COST)


def _parse_document(query: str) -> tuple[list[Selection], dict[str, Selection]]:
    """Return the operations of a document, and its fragments by name."""
    operations: list[Selection] = []
    fragments: dict[str, Selection] = {}
    tokens = _tokens(query)
    for token in tokens:
        # `fragment` is a keyword only here, where a definition begins: an operation may be named so.
        named = next(tokens, "") if token == "fragment" else ""
        if named and not _is_name(named):
            token, named = named, ""
        while token not in ("{", ""):
            if token == "(":
                _skip_arguments(tokens)
            token = next(tokens, "")
        if token == "{":
            selection = _parse_selection(tokens)
            if not named:
                operations.append(selection)
            elif fragments.setdefault(named, selection) is not selection:
                raise ValueError("two fragments of one name")
    return operations, fragments


def _parse_selection(tokens: Iterator[str]) -> Selection:
    """Return the fields and the spread fragments between a '{', which has been read, and its '}'."""
    fields, spreads = 0, []
    depth, previous = 1, "{"
    for token in tokens:
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if not depth:
                break
        elif token == "(":
            _skip_arguments(tokens)
        elif _is_name(token):
            if previous == "...":
                if token == "on":
                    previous = "type"
                    continue
                spreads.append(token)
            elif previous not in (":", "@", "type"):  # an aliased field counts by its alias; a directive; a type
                fields += 1
            token = "name"  # so that a field named `type` is not taken for the mark of a type
        previous = token
    return fields, spreads


def _size(selection: Selection, fragments: dict[str, Selection], sizes: dict[str, int], depth: int) -> int:
    fields, spreads = selection
    if depth > MAX_DEPTH:
        return MAX_COST
    for name in spreads:
        if name not in sizes:
            sizes[name] = MAX_COST  # seen only if the fragment spreads itself
            sizes[name] = _size(fragments.get(name, (1, [])), fragments, sizes, depth + 1)
        fields += sizes[name]
    return min(fields, MAX_COST)


def _is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _tokens(query: str) -> Iterator[str]:
    for found in GRAPHQL_TOKEN.finditer(query):
        token = found.group()
        if token in ('"', '"""'):
            raise ValueError("unterminated string")
        if token[0] not in '#"':
            yield token


def _skip_arguments(tokens: Iterator[str]) -> None:
    """Read tokens up to the ')' that closes the arguments."""
    depth = 1
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if not depth:
            return
    raise ValueError("unterminated arguments")


def _collect_from_body(request: RequestView, queries: list[str]) -> int:
    """Append the queries in the body to `queries`. Return the number of operations without a query text, such as
    persisted queries, which cost 1 each."""
    body = plain_body(request)
    if not body:
        return 0
    lines = request.header_lines("content-type")
    if len(lines) > 1:
        raise ValueError("two content types")
    content_type = lines[0] if lines else ""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == MULTIPART:
        return _collect_from_multipart(body, content_type, queries)
    text = body.decode("utf-8", "replace")
    if kind == FORM:
        queries += _queries_in_form(text)
    try:
        value = _parse_json(body)
    except ValueError:
        if kind == FORM:
            return 0
        if "json" in kind or "\ufffd" in text or not _is_graphql(text):
            raise
        queries.append(text)
        return 0
    return _collect_from_json(value, queries)


def _is_graphql(text: str) -> bool:
    """Return True if the text is a plain GraphQL document with at least one operation."""
    if len(text) > MAX_QUERY or next(_tokens(text), "") not in ("{", "query", "mutation", "subscription", "fragment"):
        return False
    return any(fields or spreads for fields, spreads in _parse_document(text)[0])


def _collect_from_json(value: Any, queries: list[str]) -> int:
    others = 0
    for one in value if isinstance(value, list) else [value]:
        query = one.get("query") if isinstance(one, dict) else one
        if isinstance(query, str):
            queries.append(query)
        else:
            others += 1
    return others


def _queries_in_form(text: str) -> list[str]:
    if len(text) > MAX_BODY:
        raise ValueError("too long")
    return parse_qs(text).get("query", [])


def _collect_from_multipart(body: bytes, content_type: str, queries: list[str]) -> int:
    """Append the queries in the fields `operations`, which is JSON, and `query`. Return the number of operations
    without a query text. Raises ValueError for anything that browsers do not send, since servers parse it differently.
    """
    others = 0
    for name, _, content in parts_of(body, content_type):
        if name == "operations":
            others += _collect_from_json(_parse_json(content), queries)
        elif name == "query":
            queries.append(content.decode("utf-8", "replace"))
    return others


def _parse_json(body: bytes) -> Any:
    """Return the value of a JSON text; None for an empty one. Every number is read as 0: costs do not depend on
    numbers, and Python rejects very long ones."""
    return parse_json(body, lambda digits: 0)


# Adapters read the body only for functions with this attribute.
json_batch_cost.reads_body = graphql_cost.reads_body = True  # type: ignore[attr-defined]
