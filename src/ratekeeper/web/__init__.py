"""Web frameworks: a request becomes a RequestView, a verdict becomes a response. All that is decided is in gate.py.

Each framework is imported by the one file that is named for it; asgi.py and wsgi.py need none.
"""

from ratekeeper.web.answer import Passed, Refused
from ratekeeper.web.charge import Charge, Outcome
from ratekeeper.web.declared import Endpoint, RouteLimit, declare, endpoint_of, exempt, join
from ratekeeper.web.gate import AsyncWebGate, WebGate

__all__ = [
    "AsyncWebGate",
    "Charge",
    "Endpoint",
    "Outcome",
    "Passed",
    "Refused",
    "RouteLimit",
    "WebGate",
    "declare",
    "endpoint_of",
    "exempt",
    "join",
]
