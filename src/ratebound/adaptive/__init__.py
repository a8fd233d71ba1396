"""Limits that follow the load of this process. While it is overloaded, those of unimportant rules are lowered first.

pressure.py has the law, signals.py what it is computed from, container.py the use of the CPU. How limits are lowered is
in ratebound/lowered.py, and which requests that concerns in policy/runtime. in_flight.py is a limit of its own: the
number of requests that are in the process at the same time.
"""

from ratebound.adaptive.pressure import PRIORITIES, Pressure
from ratebound.adaptive.signals import CpuUse, ErrorRate, Latency, LoopLag, Reading, Signal

__all__ = ["PRIORITIES", "CpuUse", "ErrorRate", "Latency", "LoopLag", "Pressure", "Reading", "Signal"]
