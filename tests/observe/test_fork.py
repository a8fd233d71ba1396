"""Listeners that were made before a fork work in the children, whatever other threads did at that moment."""

import logging
import os
import signal

import pytest

from ratebound.observe import LimitedClient, LogListener, TopListener
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import held_elsewhere, refusal, told


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since 3.12: while there are threads
@pytest.mark.parametrize("kind", [LogListener, TopListener])
def test_a_child_is_not_held_up_by_a_lock_of_its_parent(
    kind: type[LogListener] | type[TopListener], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ratebound")
    listener, denied = kind(clear=True, clock=clock), told(refusal(limiter_of("1/hour", clock), "k"))
    listener(denied)
    lock = listener._budget._lock if isinstance(listener, LogListener) else listener._lock
    with held_elsewhere(lock):
        child = os.fork()
        if not child:
            signal.alarm(10)
            listener(denied)
            own = not isinstance(listener, TopListener) or listener.top() == [LimitedClient("k", 1, 0)]
            os._exit(0 if own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
