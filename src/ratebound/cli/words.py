"""Numbers and durations as readable text."""

from ratebound.limit import UNITS

PARTS = (("year", UNITS["year"]), ("day", UNITS["day"]), ("h", UNITS["hour"]), ("min", UNITS["minute"]))
FRACTIONS = (("s", UNITS["second"]), ("ms", UNITS["millisecond"]), ("µs", 1))
RATE_UNITS = ("minute", "hour", "day", "year")
MAGNITUDES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def duration(microseconds: int) -> str:
    """Return a duration with two units from a minute up ('1 h 7 min'), with three digits below ('142 ms')."""
    if microseconds < UNITS["minute"]:
        for unit, length in FRACTIONS:
            if microseconds >= 0.9995 * length:  # a value that rounds to 1000 ms is shown as 1 s
                return f"{microseconds / length:.3g} {unit}"
        return "0 s"
    parts: list[str] = []
    rest = microseconds
    for unit, length in (*PARTS, FRACTIONS[0]):
        many, rest = divmod(rest, length)
        if many:
            parts.append(f"{many} {unit}s" if many > 1 and unit in ("year", "day") else f"{many} {unit}")
        if len(parts) == 2 or (parts and not many):
            break
    return " ".join(parts)


def number(value: float) -> str:
    """Return a number with separators; with three digits below 10."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"


def short(value: float) -> str:
    """Return a number in at most five characters, for the axis of a picture."""
    for size, letter in MAGNITUDES:
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def per_time(many: float, span: int) -> str:
    """Return a rate with three digits, in the first of minute, hour, day and year that makes it one or more."""
    for unit in RATE_UNITS:
        rate = many * UNITS[unit] / span
        if rate >= 0.9995:
            break
    rate = float(f"{rate:.3g}")
    return f"{number(rate)} {'an' if unit == 'hour' else 'a'} {unit}"


def period_name(period: int) -> str:
    """Return a period for use after 'in any': 'second', '15 minutes'."""
    unit, length = [(unit, length) for unit, length in UNITS.items() if period % length == 0][-1]
    return unit if period == length else f"{period // length} {unit}s"
