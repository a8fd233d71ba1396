"""A body that may have to be looked at later."""

from ratekeeper.policy.cost import MAX_BODY
from ratekeeper.web.asgi import Message, Receive


class Kept:
    """The body of a request, kept as it is received, as far as a rule may look at it; and read ahead if one does."""

    __slots__ = ("_ahead", "_body", "_is_complete", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: list[Message] = []
        self._body = b""
        self._is_complete = False

    async def receive(self) -> Message:
        return self._ahead.pop(0) if self._ahead else await self._next()

    async def read(self) -> bytes:
        """All of it, or more than a rule may look at."""
        while not self._is_complete and len(self._body) <= MAX_BODY:
            self._ahead.append(await self._next())
        return self._body

    async def _next(self) -> Message:
        message = await self._receive()
        if len(self._body) <= MAX_BODY:
            self._body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_complete = True
        return message
