"""Two switches for users' own tests: limiting off, or no sleeping. See `ratebound.testing`.

`RATEBOUND_TESTING=off` or `=nosleep` sets them before the program starts.
"""

import os
from typing import Final


class TestSwitch:
    """Both switches. They are attributes of an object because compiled code reads those faster than variables."""

    __slots__ = ("limiting", "sleeping")

    def __init__(self) -> None:
        self.limiting = True
        self.sleeping = True

    def set_mode(self, mode: str) -> None:
        """Set both: '' is normal, 'off' allows everything and counts nothing, 'nosleep' counts but never sleeps.

        Raises ValueError for any other mode.
        """
        if mode not in ("", "off", "nosleep"):
            raise ValueError(f"RATEBOUND_TESTING is {mode!r}: expected 'off', 'nosleep' or nothing")
        self.limiting = mode != "off"
        self.sleeping = mode == ""


switch: Final = TestSwitch()
switch.set_mode(os.environ.get("RATEBOUND_TESTING", ""))
