"""The dashboard, mounted in an application with the limits that it shows, which never limit it.

Routing decides which requests these are: the route must lead to the very object that `limits.dashboard()` has returned.
That is foreseen in front of all checks, because early rules are checked there, and so is the load of the process. If
something else answers after all, say a middleware, its response is checked before it starts.
"""

from typing import Any

from ratebound.web.asgi import respond
from ratebound.web.asgi_response import AsgiResponse
from ratebound.web.asgi_types import App, Receive, Scope, Send
from ratebound.web.fastapi.application import LimitedApplication
from ratebound.web.fastapi.middleware import OutermostMiddleware, SendBetween
from ratebound.web.visit import Visit


class DashboardEntrance:
    """Stands around the outermost middleware of an application in which a dashboard may be mounted."""

    def __init__(self, outermost: OutermostMiddleware, application: LimitedApplication) -> None:
        self.app = outermost
        self._application = application
        self._limits = application.limits
        self._key = application.limits.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and self._key not in scope and self._application.find(scope).is_dashboard
        if not is_ours:
            await self.app(scope, receive, send)
            return
        gate = self._limits.gate
        visit = scope[self._key] = Visit()
        visit.is_spared = True
        scope["state"] = {**scope.get("state", {})}  # the server's own is for all requests
        response = AsgiResponse(gate, visit, send, scope["method"] == "HEAD")
        between = SendBetween(self._application, visit, scope, receive, response)
        await respond(self.app.app, scope, receive, response, between.send)


class MountedDashboard:
    """A dashboard as an application to mount. It notes in the visit of a request that the request has reached it."""

    def __init__(self, dashboard: App, limits: Any) -> None:
        self._dashboard = dashboard
        self.gate = limits.gate
        self._key = limits.key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # as every framework calls it
        visit = scope.get(self._key)
        if visit is not None:
            visit.is_late = True  # nothing is left to check
        await self._dashboard(scope, receive, send)
