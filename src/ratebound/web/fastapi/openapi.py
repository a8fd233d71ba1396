"""Rejections in the OpenAPI document of a FastAPI application: each operation that has limits can answer 429."""

from collections.abc import Callable, Container
from typing import Any

from ratebound.http.openapi import describe_exceeded, describe_unavailable
from ratebound.policy import Policy, Rule
from ratebound.policy.runtime.possible_rejections import possible_rejections
from ratebound.web.fastapi.application import LimitedApplication
from ratebound.web.fastapi.route_table import TableRoute

Document = dict[str, Any]

EXCEEDED = "RateLimitExceeded"
UNAVAILABLE = "RateLimitUnavailable"
REFERENCE = "#/components/responses/"


class DescribedApplication:
    """The OpenAPI document of an application, with the rejections of its limits. `has_own_handler` is a function of a
    status that returns True if the application answers rejections of this status in its own words."""

    def __init__(self, application: LimitedApplication, has_own_handler: Callable[[int], bool]) -> None:
        self._application = application
        self._has_own_handler = has_own_handler
        self._last: tuple[Any, Any, Document] = (None, None, {})  # a document, the policy, and the described document
        self._added: set[str] = set()  # the names of the responses that the described document has got here

    def openapi(self, made: Callable[[], Document]) -> Document:
        """Return the document that the application makes, with rejections added. The application keeps it in place of
        its own, so that a program can change `app.openapi_schema`, or what it gets here, as without limits."""
        app, document = self._application.app, made()
        described = self.described(document)
        if getattr(app, "openapi_schema", None) is document:
            app.openapi_schema = described
        return described

    def described(self, document: Document) -> Document:
        """Return the document with rejections added; the given one is not changed. Responses that an endpoint
        describes itself stay as they are."""
        compiled = self._application.limits.gate.current()
        before, then, after = self._last
        if then is not compiled or (document is not before and document is not after):
            added = self._added if document is after else set[str]()
            self._last = (document, compiled, self._describe(document, compiled.policy, added))
        return self._last[2]

    def _describe(self, document: Document, policy: Policy, added: set[str]) -> Document:
        """Return a described copy. `added` are the names of responses that an earlier policy has left in it."""
        operations = {
            (route.path_format, method): route
            for route in reversed([*self._application.table().routes])  # of two alike, the first one answers
            for method in route.methods
        }
        components = document.get("components") or {}  # YAML has null where nothing is written
        own = {name: one for name, one in (components.get("responses") or {}).items() if name not in added}
        old = [{"$ref": REFERENCE + name} for name in added]
        names = dict[str, Document]()
        paths = {
            path: {
                key: self._operation(
                    key.upper(), _without(one, old), operations.get((path, key.upper())), policy, own, names
                )
                for key, one in (item or {}).items()
            }
            for path, item in (document.get("paths") or {}).items()
        }
        self._added = {*names}
        if not names and not added:
            return document
        return {**document, "paths": paths, "components": {**components, "responses": {**own, **names}}}

    def _operation(
        self,
        method: str,
        operation: Any,
        route: TableRoute | None,
        policy: Policy,
        taken: Container[str],
        names: dict[str, Document],
    ) -> Any:
        """Return an operation with its rejections. `names` gets the responses that it refers to, and `taken` are those
        of the application itself."""
        if route is None or not isinstance(operation, dict):
            return operation
        application, format = self._application, policy.rejection_format
        endpoint = route.found(method).endpoint
        rules = application.limits.gate.rules_for(endpoint)
        root = getattr(application.app, "root_path", "").rstrip("/")
        own = list(dict.fromkeys(application.unforeseen(route)))
        more: list[Rule] = [limit.rule("unforeseen") for limit in own]
        possible = possible_rejections(
            rules.compiled.policy,
            method,
            [route.template, *([root + route.template] if root else ())],
            late=rules.last_stage == "late",
            more=more if rules.last_stage == "late" else (),
        )
        limits = [*own, *(() if endpoint is None else endpoint.limits)]
        is_own = any(limit.on_breach is not None for limit in limits)
        responses = {**(operation.get("responses") or {})}
        for is_possible, status, name, describe in (
            (possible.exceeds, format.status, EXCEEDED, describe_exceeded),
            (possible.unavailable, format.unavailable_status, UNAVAILABLE, describe_unavailable),
        ):
            if is_possible and str(status) not in map(str, responses):  # YAML has numbers
                has_own_body = is_own or self._has_own_handler(status)
                name += "InOwnWords" if has_own_body else ""
                name += "_" * (name in taken)
                names[name] = describe(format, has_own_body=has_own_body)
                responses[str(status)] = {"$ref": REFERENCE + name}
        return {**operation, "responses": responses}


def _without(operation: Any, responses: list[Document]) -> Any:
    """Return an operation without these responses."""
    if not responses or not isinstance(operation, dict):
        return operation
    kept = {status: one for status, one in (operation.get("responses") or {}).items() if one not in responses}
    return {**operation, "responses": kept}
