"""Unary gRPC calls: what a method is given, what it returns, and the error that it may raise."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

GrpcAnswer = bytes | Coroutine[Any, Any, bytes]


class GrpcCall(NamedTuple):
    """One unary call. `timeout` is the time that the caller gives it, in seconds; None if it gives none."""

    message: bytes
    metadata: list[tuple[bytes, bytes]]
    timeout: float | None = None
    peer: str | None = None


Method = Callable[[GrpcCall], GrpcAnswer]


class GrpcError(Exception):
    """An error to answer a call with: a status of gRPC and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
