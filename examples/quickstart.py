"""Hit a limit until it denies, and do what it says."""

from ratebound import Limiter, MemoryStorage
from ratebound.testing import FakeClock

clock = FakeClock()  # so that this example does not sleep; leave it out in a program of yours
limiter = Limiter("5/minute; 2/second burst 3", storage=MemoryStorage(clock=clock), sleep=clock.sleep)

for i in range(8):
    decision = limiter.hit("user:42")
    if decision:
        print(f"{i}: allowed, {decision.remaining} left of {decision.limit}")
    else:
        print(f"{i}: denied by {decision.limit}, retry in {decision.retry_after} s")
        clock.sleep(decision.retry_after or 0)
