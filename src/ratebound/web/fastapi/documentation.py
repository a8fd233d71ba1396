"""The pages with which FastAPI documents an application: `/docs`, `/redoc`, `/openapi.json`, or what it was told.

They are known by the functions that FastAPI itself has made for them, never by their paths. Another route at the same
path, and pages of mounted applications, are routes like all others.
"""

from types import CodeType
from typing import Any

READING = {"GET", "HEAD"}
URLS = ("openapi_url", "docs_url", "redoc_url", "swagger_ui_oauth2_redirect_url")


def is_documentation(app: Any, route: Any) -> bool:
    """Return True if a route of the application itself leads to a function that FastAPI has made for its documentation,
    and nothing stands between the limits and the router that could lead a request elsewhere."""
    try:
        from fastapi import FastAPI
    except ModuleNotFoundError:
        return False
    if not isinstance(app, FastAPI) or not any(one is route for one in app.router.routes):
        return False
    made = {one for one in FastAPI.setup.__code__.co_consts if isinstance(one, CodeType)}
    return (
        getattr(route.endpoint, "__code__", None) in made
        and getattr(route.app, "__module__", None) == "starlette.routing"  # nothing was put around the function
        and route.path in [getattr(app, name, None) for name in URLS]
        and READING.issuperset(route.methods or ("any",))
        and app.router.middleware_stack == app.router.app  # the router has no middleware of its own
    )
