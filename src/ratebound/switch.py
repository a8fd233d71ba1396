"""Two switches for users' own tests: limiting off, or no sleeping. See `ratebound.testing`.

`RATEBOUND_TESTING=off` or `=nosleep` sets them before the program starts.
"""

import os

limiting = True
sleeping = True


def set_mode(mode: str) -> None:
    """Set both switches: '' is normal, 'off' allows everything and counts nothing, 'nosleep' counts but never sleeps.

    Raises ValueError for any other mode.
    """
    global limiting, sleeping
    if mode not in ("", "off", "nosleep"):
        raise ValueError(f"RATEBOUND_TESTING is {mode!r}: expected 'off', 'nosleep' or nothing")
    limiting = mode != "off"
    sleeping = mode == ""


set_mode(os.environ.get("RATEBOUND_TESTING", ""))
