"""The types of ASGI, and the keys under which we keep things in a scope."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

STATE = "ratebound"  # the key of the decision in `scope["state"]`
VISIT = "ratebound.visit"  # the key of the visit in a scope
