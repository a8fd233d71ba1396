"""The arithmetic of every algorithm (law 1), without I/O and without a clock.

A kernel is a small class of states (see `state.State`):
- `fits` returns True if a cost passes now, and `standing` returns what remains. They change nothing.
- `spend` charges a cost if the limit allows it.
- `force` charges or refunds unconditionally.
- `repair` corrects a state after the clock stepped back.
- `turn_after` returns when a cost passes if other costs pass before it, each as early as it can.

Slots and distinct values are taken by `take`, and a penalty counts a `strike`. Beside a kernel stands `grows_after`,
which returns when more will remain than an answer said, if nothing is spent. It is never too early. `group_law` decides
several limits together; `packing` turns states into numbers and back.
"""

from ratebound.kernels import concurrency, fixed_window, gcra, penalty, quota, sliding_counter, sliding_log
from ratebound.numbers import Numbers


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains than `remaining`, if nothing is spent. Never too early."""
    algorithm = limit.algorithm
    if algorithm == "fixed-window":
        return fixed_window.grows_after(limit, remaining, reset_after)
    if algorithm == "sliding-counter":
        return sliding_counter.grows_after(limit, remaining, reset_after)
    if algorithm == "sliding-log":
        return sliding_log.grows_after(limit, remaining, reset_after)
    if algorithm == "quota":
        return quota.grows_after(limit, remaining, reset_after)
    if algorithm == "penalty":
        return penalty.grows_after(limit, remaining, reset_after)
    if algorithm in ("concurrent", "distinct"):
        return concurrency.grows_after(limit, remaining, reset_after)
    return gcra.grows_after(limit, remaining, reset_after)
