"""States as whole numbers, for storages outside this process. The only place that knows both forms."""

from ratebound.kernels.concurrency import Slots
from ratebound.kernels.distinct import Values
from ratebound.kernels.fixed_window import Window
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.penalty import Strikes
from ratebound.kernels.quota import QuotaWindow
from ratebound.kernels.sliding_counter import Counter
from ratebound.kernels.sliding_log import Log, costs_or_none
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.numbers import Numbers

Packed = tuple[int, ...]


def packed(limit: Numbers, state: State) -> Packed | None:
    """Return a state as whole numbers, the first of which is `expires`; None if it was never spent from."""
    return None if state.expires == UNTOUCHED else state.pack(limit)


def unpacked(limit: Numbers, numbers: Packed | None) -> State:
    """Return the state that was packed; an untouched one for None."""
    algorithm = limit.algorithm
    if algorithm == "fixed-window":
        return Window() if numbers is None else Window(numbers[0], numbers[1], numbers[2])
    if algorithm == "sliding-counter":
        return Counter() if numbers is None else Counter(numbers[0], numbers[1], numbers[2])
    if algorithm == "sliding-log":
        if numbers is None:
            return Log()
        older, costs = list(numbers[2:-2:2]), list(numbers[3:-2:2])
        return Log(numbers[0], numbers[1], numbers[-1], older or None, costs_or_none(costs))
    if algorithm == "quota":
        return QuotaWindow() if numbers is None else QuotaWindow(*numbers)
    if algorithm == "concurrent":
        return Slots() if numbers is None else Slots(numbers[0], dict(zip(numbers[2::2], numbers[3::2], strict=True)))
    if algorithm == "distinct":
        return Values() if numbers is None else Values(numbers[0], dict(zip(numbers[2::2], numbers[3::2], strict=True)))
    if algorithm == "penalty":
        return Strikes() if numbers is None else Strikes(*numbers)
    if numbers is None:
        return Bucket()
    return Bucket(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5:] or None)
