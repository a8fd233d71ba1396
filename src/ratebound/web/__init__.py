"""Adapters for web frameworks: a request becomes a RequestView, a verdict becomes a response. gate.py decides, and
visit.py has the life of a request.

Each framework is imported by the folder or file that is named for it; asgi.py and wsgi.py need none.
"""

from ratebound.admin.operators import Operator
from ratebound.policy.model.charge_by_result import Charge, FinishedResponse
from ratebound.web.gate import AsyncWebGate, WebGate
from ratebound.web.passed import Passed
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit, declare, exempt, join

__all__ = [
    "AsyncWebGate",
    "Charge",
    "Endpoint",
    "FinishedResponse",
    "Operator",
    "Passed",
    "Rejected",
    "RouteLimit",
    "WebGate",
    "declare",
    "exempt",
    "join",
]
