"""Figures of a gate that nobody counts: every list is empty."""

import time
from collections.abc import Sequence
from typing import Any


class EmptyFigures:
    """Figures without a number. The page works, and shows nothing."""

    def view(self) -> dict[str, Any]:
        """Return figures in which nothing happens."""
        return {
            "at": time.time(),
            "processes": [],
            "problem": "",
            "total": {"allowed": 0.0, "denied": 0.0, "degraded": 0.0, "shed": 0.0},
            "latency": None,
            "rules": [],
            "storage": {"nodes": [], "keys": None, "max_keys": None},
            "factors": {},
            "slots": [],
            "top": [],
            "penalized": [],
            "shadow_report": [],
        }

    def history(self) -> dict[str, Any]:
        """Return a history without points."""
        end = time.time()
        return {
            "recent": {"step": 1, "end": end, "points": []},
            "hour": {"step": 10, "end": end, "points": []},
            "rules": {},
        }

    def names(self, digests: Sequence[str]) -> dict[str, str]:
        """Return no names."""
        return {}
