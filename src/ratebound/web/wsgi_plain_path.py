"""The plain path of a request over WSGI."""

from typing import Any, Final

from ratebound.policy.match.request import Wire
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.passed import Passed
from ratebound.web.plain_path import PlainPath
from ratebound.web.rejected import Rejected

PASSED: Final = "ratebound.passed"  # the key of the decision in an environ


def check_plain(plain: PlainPath, rules: EndpointRules, wire: Wire, environ: Any) -> Passed | Rejected | None:
    """Decide a request by the plain path; None if it takes more: another gate around this one, for example."""
    if PASSED in environ:
        return None
    peer = environ.get("REMOTE_ADDR") or None
    return plain.check(rules, wire, environ, environ["REQUEST_METHOD"], peer, None, None, "HTTP_ORIGIN" in environ)
