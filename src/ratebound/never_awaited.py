"""The warning of a coroutine that nobody awaits. Not compiled: a warning may raise, and compiled `__del__` must not."""

from warnings import warn


class NeverAwaited:
    """Warns when it is dropped. If warnings are errors, Python reports the error, as it does for its own coroutines."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        warn(f"coroutine {self.name!r} was never awaited", RuntimeWarning, stacklevel=2)
