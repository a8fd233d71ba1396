"""An application in front of another: it gets all requests at one path and below, and the other one gets the rest.

The path that decides is the one that is handed on, so that no other spelling of it reaches the first application.
"""

from collections.abc import Callable, Iterable
from typing import Any

from ratebound.web.asgi_types import App
from ratebound.web.wsgi_response import Application, Environ


class AsgiMount:
    """An ASGI application with another one mounted at a path. WebSocket connections and the lifespan are for the first
    one."""

    def __init__(self, app: App, path: str, mounted: App) -> None:
        self.app = app
        self._path = checked_path(path)
        self._mounted = mounted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # every framework has types of its own
        if scope["type"] == "http":
            path, root = scope["path"], scope.get("root_path", "")
            below = path[len(root) :] if root and path.startswith(f"{root}/") else path
            if is_at(below, self._path):
                mounted = {**scope, "root_path": root + self._path, "path": path if below is not path else root + path}
                await self._mounted(mounted, receive, send)
                return
        await self.app(scope, receive, send)


class WsgiMount:
    """A WSGI application with another one mounted at a path."""

    def __init__(self, app: Application, path: str, mounted: Application) -> None:
        self.app = app
        self._path = checked_path(path)
        self._mounted = mounted

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        path: str = environ.get("PATH_INFO") or ""
        if not is_at(path, self._path):
            return self.app(environ, start_response)
        script = environ.get("SCRIPT_NAME") or ""
        mounted = {**environ, "SCRIPT_NAME": script + self._path, "PATH_INFO": path[len(self._path) :]}
        return self._mounted(mounted, start_response)


def checked_path(path: str) -> str:
    """Return the path of a mount. Raises ValueError unless it has a slash in front, none at its end, and is plain."""
    is_plain = isinstance(path, str) and path.isascii() and not {*"%?#{} "} & {*path}
    if not is_plain or not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"the path of the dashboard is written like '/limits', not {path!r}")
    return path


def is_at(path: str, mount: str) -> bool:
    """Return True if a path is the mount or below it."""
    return path.startswith(mount) and path[len(mount) : len(mount) + 1] in ("", "/")
