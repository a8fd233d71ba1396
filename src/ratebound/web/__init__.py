"""Web frameworks: a request becomes a RequestView, a verdict becomes a response. All that is decided is in gate.py.

Each framework is imported by the one file that is named for it; asgi.py and wsgi.py need none.
"""

from ratebound.web.answer import Passed, Refused
from ratebound.web.charge import Charge, Outcome
from ratebound.web.declared import Endpoint, RouteLimit, declare, endpoint_of, exempt, join
from ratebound.web.gate import AsyncWebGate, WebGate

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
