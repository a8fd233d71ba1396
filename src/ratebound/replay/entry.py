"""One request of an access log, and a line that could not be read."""

from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """A request as the access log tells it. Fields that the log does not have are empty.

    A line without an HTTP request, such as a failed TLS handshake, has an empty method and target.
    """

    at: int  # microseconds since the epoch: when the request came
    address: str  # of the client
    method: str
    target: str  # path with query, as logged
    status: int  # 0: the log has none
    host: str = ""
    user: str = ""
    agent: str = ""
    fields: Mapping[str, str] | None = None  # all else that the line tells; request headers by their lower-case name


class MalformedLine(NamedTuple):
    """A line that does not have the format of its file: shortened, without control characters."""

    file: str
    line: int  # the first line is 1
    text: str
