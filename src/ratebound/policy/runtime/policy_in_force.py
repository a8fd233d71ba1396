"""The policy that a gate decides by now. In a module of its own, because every request looks at it."""

from typing import Any

from ratebound.compiling import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PolicyInForce:
    """The compiled policy in force, the file that it comes from, if any, and the switch that overrides it."""

    __slots__ = ("compiled", "file", "switch")

    def __init__(self, compiled: Any, file: Any) -> None:
        self.compiled = compiled
        self.file = file
        self.switch: str | None = None
