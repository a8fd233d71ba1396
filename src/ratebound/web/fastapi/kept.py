"""A body that may have to be looked at later."""

import asyncio

from ratebound.policy.cost import MAX_BODY
from ratebound.web.asgi import Message, Receive


class Kept:
    """The body of a request, kept as it is received, as far as a rule may look at it; and read ahead if one does.

    One at a time asks the server: whoever waits there for the end of the connection would take the body from one who
    waits for the body, and that one would wait for ever.
    """

    __slots__ = ("_ahead", "_body", "_is_complete", "_lock", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: list[Message] = []
        self._body = bytearray()
        self._is_complete = False
        self._lock = asyncio.Lock()  # does not suspend who finds it free, who may be there only to look

    async def receive(self) -> Message:
        if self._ahead:
            return self._ahead.pop(0)
        async with self._lock:
            return self._ahead.pop(0) if self._ahead else await self._next()

    async def read(self) -> bytes:
        """All of it, or more than a rule may look at."""
        while not self._has_enough():
            async with self._lock:
                if not self._has_enough():
                    self._ahead.append(await self._next())
        return bytes(self._body)

    def _has_enough(self) -> bool:
        return self._is_complete or len(self._body) > MAX_BODY

    async def _next(self) -> Message:
        message = await self._receive()
        if len(self._body) <= MAX_BODY:
            self._body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_complete = True
        return message
