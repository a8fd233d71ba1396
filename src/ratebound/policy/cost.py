"""What a request costs, where one request is many: batches of JSON, and GraphQL with its aliases and fragments.

Both look at the body, which an adapter reads only for functions that ask for it, by an attribute `reads_body`. A body
that cannot be read here may be read by the application, so it costs what nobody has: else a spelling that only the
application understands would be a batch for the price of one.
"""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from ratebound.policy.match.request import RequestView

MAX_BODY = 1_000_000  # bytes: what is larger costs what nobody has
MAX_QUERY = 100_000  # characters of all documents of one request: likewise
MAX_COST = 1_000_000
MAX_DEPTH = 200
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
# Each alternative either ends where it began to fail or takes its text: one pass. A quote or three by themselves open
# a string that nothing closes.
GRAPHQL_TOKEN = re.compile(
    r'#[^\r\n]*|"""(?:[^"\\]|\\"""|\\(?!""")|"(?!""))*"""|"""|"(?:[^"\\\r\n]|\\[^\r\n])*"|"'
    r"|\.\.\.|[{}()@:]|[_A-Za-z][_0-9A-Za-z]*"
)
PART_NAME = re.compile(r'content-disposition:[ \t]*form-data[ \t]*;[ \t]*name=(?:"([^"\\]*)"|([^\s";]+))', re.I)
PART_NAMES = re.compile(r"(?<![a-z])name\*?[0-9]?\*?[ \t]*=", re.I)

Selection = tuple[int, list[str]]  # the number of fields, and the fragments that are spread


def json_batch_cost(request: RequestView) -> int:
    """The number of calls in a JSON-RPC batch, or of elements in any JSON array; 1 for any other JSON, or no body."""
    try:
        body = _json(_body(request))
    except ValueError:
        return MAX_COST
    return min(max(len(body), 1), MAX_COST) if isinstance(body, list) else 1


def graphql_cost(request: RequestView) -> int:
    """The number of fields that a GraphQL request selects, aliases each by itself and fragments wherever they are
    spread; batched queries together. Introspection by `__typename` counts like any field.

    Queries are looked for in the query string and in a body of JSON, of a form, of parts, or of plain GraphQL. What
    names a query that the server has stored costs 1.
    """
    try:
        queries = _of_form(request.query)
        others = _of_body(request, queries)
    except ValueError:
        return MAX_COST
    if sum(map(len, queries)) > MAX_QUERY:
        return MAX_COST
    return min(max(others + sum(map(query_cost, queries)), 1), MAX_COST)


def query_cost(query: str) -> int:
    """Fields selected by the operations of one document. A fragment that spreads itself is beyond counting, and so is
    a document that breaks off inside of a string or of arguments."""
    if len(query) > MAX_QUERY:
        return MAX_COST
    try:
        operations, fragments = _document(query)
    except ValueError:
        return MAX_COST
    sizes: dict[str, int] = {}
    return min(max(sum(_size(one, fragments, sizes, 0) for one in operations), 1), MAX_COST)


def _document(query: str) -> tuple[list[Selection], dict[str, Selection]]:
    """Its operations, and its fragments by name."""
    operations: list[Selection] = []
    fragments: dict[str, Selection] = {}
    tokens = _tokens(query)
    for token in tokens:
        # Only here, where a definition begins, is `fragment` a keyword: an operation may have that name.
        named = next(tokens, "") if token == "fragment" else ""
        if named and not _is_name(named):
            token, named = named, ""
        while token not in ("{", ""):
            if token == "(":
                _skip(tokens)
            token = next(tokens, "")
        if token == "{":
            selection = _selection(tokens)
            if not named:
                operations.append(selection)
            elif fragments.setdefault(named, selection) is not selection:
                raise ValueError("two fragments of one name")
    return operations, fragments


def _selection(tokens: Iterator[str]) -> Selection:
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
        elif _is_name(token):
            if before == "...":
                if token == "on":
                    before = "type"
                    continue
                spreads.append(token)
            elif before not in (":", "@", "type"):  # behind an alias, which was counted; of a directive; of a type
                fields += 1
            token = "name"  # whatever it is: no name is taken for a mark
        before = token
    return fields, spreads


def _size(selection: Selection, fragments: dict[str, Selection], sizes: dict[str, int], depth: int) -> int:
    fields, spreads = selection
    if depth > MAX_DEPTH:
        return MAX_COST
    for name in spreads:
        if name not in sizes:
            sizes[name] = MAX_COST  # what it counts as while it is being counted: a cycle
            sizes[name] = _size(fragments.get(name, (1, [])), fragments, sizes, depth + 1)
        fields += sizes[name]
    return min(fields, MAX_COST)


def _is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _tokens(query: str) -> Iterator[str]:
    for found in GRAPHQL_TOKEN.finditer(query):
        token = found.group()
        if token in ('"', '"""'):
            raise ValueError("a string that nothing closes")
        if token[0] not in '#"':
            yield token


def _skip(tokens: Iterator[str]) -> None:
    """Over arguments, to the ')' that closes them."""
    depth = 1
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if not depth:
            return
    raise ValueError("arguments that nothing closes")


def _of_body(request: RequestView, queries: list[str]) -> int:
    """Add the queries of the body; the number of operations in it that are no text, but costs of 1 each."""
    body = _body(request)
    if not body:
        return 0
    lines = request.header_lines("content-type")
    if len(lines) > 1:
        raise ValueError("two content types")
    content_type = lines[0] if lines else ""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == MULTIPART:
        return _of_parts(body, content_type, queries)
    text = body.decode("utf-8", "replace")
    if kind == FORM:
        queries += _of_form(text)
    try:
        read = _json(body)
    except ValueError:
        if kind == FORM:
            return 0
        if "json" in kind or "\ufffd" in text or not _is_graphql(text):
            raise
        queries.append(text)
        return 0
    return _of_json(read, queries)


def _is_graphql(text: str) -> bool:
    """Whether this is a document by itself, and not one that is wrapped in something else."""
    if len(text) > MAX_QUERY or next(_tokens(text), "") not in ("{", "query", "mutation", "subscription", "fragment"):
        return False
    return any(fields or spreads for fields, spreads in _document(text)[0])


def _of_json(read: Any, queries: list[str]) -> int:
    others = 0
    for one in read if isinstance(read, list) else [read]:
        query = one.get("query") if isinstance(one, dict) else one
        if isinstance(query, str):
            queries.append(query)
        else:
            others += 1
    return others


def _of_form(text: str) -> list[str]:
    if len(text) > MAX_BODY:
        raise ValueError("too long")
    return parse_qs(text).get("query", [])


def _of_parts(body: bytes, content_type: str, queries: list[str]) -> int:
    """Those of the fields `operations`, which is JSON, and `query`. What is not as browsers write it is not read."""
    boundaries = re.findall(r'boundary=(?:"([^"\\]+)"|([^\s";,]+))', content_type, re.I)
    if len(boundaries) != 1 or content_type.lower().count("boundary") != 1:
        raise ValueError("no boundary, or several")
    _, *parts, last = body.split(b"--" + "".join(boundaries[0]).encode("latin-1", "replace"))
    if not parts or not last.startswith(b"--"):
        raise ValueError("no parts, or no end of them")
    others = 0
    for part in parts:
        head, end, content = part.partition(b"\r\n\r\n")
        lines = head.decode("utf-8", "replace")
        named = PART_NAME.search(lines)
        if not end or named is None or len(PART_NAMES.findall(lines)) > 1 or "transfer-encoding" in lines.lower():
            raise ValueError("a part that has no plain name")
        name = named[1] or named[2]
        if name == "operations":
            others += _of_json(_json(content), queries)
        elif name == "query":
            queries.append(content.decode("utf-8", "replace"))
    return others


def _body(request: RequestView) -> bytes:
    """The body, if it can be read as it is."""
    body = request.body or b""
    if len(body) > MAX_BODY:
        raise ValueError("too long")
    body = body.strip()
    if body and any(line.strip().lower() not in ("", "identity") for line in request.header_lines("content-encoding")):
        raise ValueError("compressed")
    return body


def _json(body: bytes) -> Any:
    """What JSON says; None for nothing. Numbers are all 0: nobody asks for them, and long ones cannot be read."""
    if not body:
        return None
    try:
        return json.loads(body, parse_int=lambda digits: 0, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("too deep") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name that is there twice: which of the two counts is not known")
    return found


# An adapter reads the body for functions that say so.
json_batch_cost.reads_body = graphql_cost.reads_body = True  # type: ignore[attr-defined]
