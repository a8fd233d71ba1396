"""The dashboard of a web gate, for all adapters: its figures, the calls of operators, and who may call them.

It adds listeners to the gate. So requests leave the plain path of plain_path.py, which is for gates without listeners.
Administration is imported when the first dashboard is made: most applications have none.
"""

import functools
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from ratebound.admin.operators import Operator as Operator
from ratebound.admin.operators import Role
from ratebound.web.gate import AsyncWebGate, WebGate

if TYPE_CHECKING:
    from ratebound.admin.asgi import AdminAsgi
    from ratebound.admin.site import AdminSite
    from ratebound.admin.wsgi import AdminWsgi
    from ratebound.ledger import Ledger
    from ratebound.observe.gate_figures import GateFigures

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")

Found = Operator | Role | None
Auth = Callable[P, Found | Awaitable[Found]]

NO_AUTH = (
    "the dashboard needs auth=, a function that returns the role of the caller: None (no access), 'read', 'write',"
    " or Operator(name, 'write')"
)

_lock = threading.Lock()


class DashboardLedger(Protocol):
    """The usage ledger of a dashboard: a `ratebound.ledger.Ledger`.

    It stands for that class in the signatures of adapters, which do not import it: most applications have no ledger.
    """

    @property
    def keeps_names(self) -> bool:
        """True if clients are written by name, and not as digests."""


def needing_auth(function: Callable[Q, T]) -> Callable[Q, T]:
    """Make `dashboard()` raise a TypeError that says what `auth` is, where Python's own would only name it."""

    @functools.wraps(function)
    def called(*args: Q.args, **options: Q.kwargs) -> T:
        auth = options.get("auth")
        if auth is None:
            raise TypeError(NO_AUTH)
        if not callable(auth):
            raise TypeError(f"{NO_AUTH}; not {auth!r}")
        ledger = options.get("ledger")
        if ledger is not None:
            _check_ledger(ledger)
        return function(*args, **options)

    return called


def _check_ledger(ledger: object) -> None:
    from ratebound.ledger import Ledger

    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger= of the dashboard takes a Ledger, like Ledger('sqlite:///usage.db'), not {ledger!r}")


def figures_of(gate: WebGate | AsyncWebGate) -> "GateFigures":
    """Return the figures of a gate, which counts them from the first call on."""
    from ratebound.observe.gate_figures import GateFigures

    with _lock:
        found: GateFigures | None = gate.figures
        if found is None:
            found = gate.figures = GateFigures(gate.gate)
        return found


def dashboard_site(
    gate: WebGate | AsyncWebGate, auth: Callable[[Any], Any], ledger: DashboardLedger | None = None
) -> "AdminSite":
    """Return the site of a gate's dashboard. `auth` is called with the framework's own request. `ledger` is the usage
    ledger, for history."""
    from ratebound.admin.operations import Operations
    from ratebound.admin.sign_in import GivenSignIn
    from ratebound.admin.site import AdminSite

    known = cast("Ledger | None", ledger)  # `needing_auth` has checked it
    return AdminSite(Operations(gate, figures_of(gate), ledger=known), GivenSignIn(auth))


def asgi_dashboard(
    gate: AsyncWebGate, auth: Callable[[Any], Any], ledger: DashboardLedger | None = None
) -> "AdminAsgi":
    """Return the dashboard of a gate as an ASGI application. `auth` is called with the scope."""
    from ratebound.admin.asgi import AdminAsgi

    return AdminAsgi(dashboard_site(gate, auth, ledger))


def wsgi_dashboard(gate: WebGate, auth: Callable[[Any], Any], ledger: DashboardLedger | None = None) -> "AdminWsgi":
    """Return the dashboard of a gate as a WSGI application. `auth` is called with the environ."""
    from ratebound.admin.wsgi import AdminWsgi

    return AdminWsgi(dashboard_site(gate, auth, ledger))
