"""An application of Flask for tests."""

from collections.abc import Callable
from typing import Any

import flask

from ratekeeper import MemoryStorage
from ratekeeper.testing import FakeClock
from ratekeeper.web.flask import RateKeeper


class Site:
    """An application on a clock that stands still."""

    def __init__(self, policy: Any = None, app: flask.Flask | None = None, **options: Any) -> None:
        self.app = flask.Flask("tests.site") if app is None else app
        self.clock = FakeClock()
        self.limiter = RateKeeper(self.app, policy, **{"storage": MemoryStorage(clock=self.clock), **options})

    def view(self, path: str, *decorators: Callable[[Any], Any], answer: Any = "ok", **more: Any) -> None:
        def view(**_: Any) -> Any:
            return answer() if callable(answer) else answer

        view.__name__ = path.strip("/").partition("/")[0] or "home"
        for decorate in decorators:
            view = decorate(view)
        self.app.add_url_rule(path, view_func=view, **more)

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:
        return self.app.test_client().open(path, method=method, headers=headers)

    def passes(self, path: str, most: Any = 20, method: str = "GET", **headers: str) -> int:
        """How many in turn go ahead before the first is refused."""
        for count in range(most):
            if self.get(path, method, **headers).status_code in (429, 403):
                return count
        return int(most)
