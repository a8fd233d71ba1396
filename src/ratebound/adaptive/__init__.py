"""Adaptive limits: while this process is overloaded, limits are lowered, those of the least important rules first.

pressure.py has the law, signals.py what it is computed from, container.py the use of the CPU. How limits are lowered is
in ratebound/lowered.py, and which requests that concerns in policy/runtime.
"""

from ratebound.adaptive.pressure import PRIORITIES, Pressure
from ratebound.adaptive.signals import CpuUse, ErrorRate, Latency, LoopLag, Reading, Signal

__all__ = ["PRIORITIES", "CpuUse", "ErrorRate", "Latency", "LoopLag", "Pressure", "Reading", "Signal"]
