"""Draw docs/pictures/outage.svg: an outage of Redis in three failure modes, as benchmarks/storage_outage.json has it.

    python tools/draw_outage.py

To measure it again: python -m benchmarks.storage_outage
"""

import json
from pathlib import Path
from typing import Any

from drawing import cross, line, picture, text, write

DATA = Path(__file__).parent.parent / "benchmarks" / "storage_outage.json"
WIDTH, LEFT, RIGHT = 760, 150, 740
TOP, LANE, BARS = 84, 118, 60  # the first mode, the height of each, and the height of its bars
KINDS = {"allowed": ("green", 0.85), "denied": ("red", 0.4), "unavailable": ("amber", 0.85)}
WORDS = {"local": "half: its share", "open": "allows all", "closed": "503 to all"}
NARROW = 620  # pixels of the picture on the page, below which texts are larger
STYLE = (
    "text{font-size:19px}.head{font-size:20px;font-weight:bold}"
    f"@media(min-width:{NARROW}px){{text{{font-size:13px}}.head{{font-size:15px}}}}"
)


def draw_pictures() -> dict[str, str]:
    """Return the SVG text by file name."""
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    height = TOP + LANE * len(found["modes"]) + 92
    title = f"An outage of Redis at {found['rate']} requests per second, limit {found['limit']}"
    parts = [text(16, 26, title, kind="ink head"), *_redis(found, height)]
    for place, mode in enumerate(found["modes"]):
        parts += _mode(found, mode, TOP + LANE * place)
    parts += _legend(height - 18)
    told = " ".join(_told(found, mode) for mode in found["modes"])
    return {"outage.svg": picture(WIDTH, height, title, parts, told=told, style=STYLE)}


def _told(found: dict[str, Any], mode: dict[str, Any]) -> str:
    first, last = (round(found[name] / found["slice"]) for name in ("killed", "started"))
    counts = {kind: sum(mode[kind][first:last]) for kind in KINDS}
    opened, recovered = mode["changes"]
    waits = _after(found, opened, "killed"), _after(found, recovered, "started")
    return (
        f"Failure mode {mode['mode']}: from the kill to the restart {counts['allowed']} allowed, {counts['denied']}"
        f" denied, {counts['unavailable']} refused as unavailable. The breaker opened {waits[0]} ms after the kill and"
        f" closed {waits[1]} ms after the restart;"
        f" {recovered['written_back']} units were written back."
    )


def _after(found: dict[str, Any], change: dict[str, Any], event: str) -> int:
    seconds: float = change["at"] - found[event]
    return round(seconds * 1000)


def _x(found: dict[str, Any], at: float) -> float:
    until: float = found["until"]
    return round(LEFT + (RIGHT - LEFT) * at / until, 1)


def _redis(found: dict[str, Any], height: int) -> list[str]:
    """Return when Redis was there, and the clock."""
    killed, up, floor = _x(found, found["killed"]), _x(found, found["up"]), height - 86
    parts = [
        f'<rect x="{killed}" y="44" width="{up - killed:.1f}" height="{floor - 44}" class="faint" fill-opacity=".16"/>',
        text(16, 60, "Redis"),
        text(killed + 6, 60, f"killed at {found['killed']:g} s"),
        text(up + 6, 60, f"started at {found['started']:g} s"),
        line(f"M{LEFT} 68H{killed}M{up} 68H{RIGHT}", "green-line", ' stroke-width="4"'),
    ]
    for second in range(0, round(found["until"]) + 1, 2):
        parts.append(text(_x(found, second), floor + 16, f"{second} s", "middle"))
    return parts


def _mode(found: dict[str, Any], mode: dict[str, Any], y: int) -> list[str]:
    """Return the answers of one mode as bars, and its breaker."""
    floor = y + 24 + BARS
    begin, end = (_x(found, at) for at in mode["degraded"])
    parts = [
        text(16, y + 42, mode["mode"], kind="ink head"),
        text(16, y + 64, WORDS[mode["mode"]]),
        line(f"M{LEFT} {floor}H{RIGHT}"),
        line(f"M{begin} {y + 19}H{end}", "amber-line", ' stroke-width="4"'),
    ]
    width = (RIGHT - LEFT) * found["slice"] / found["until"]
    most = max(sum(counts) for any_mode in found["modes"] for counts in zip(*map(any_mode.get, KINDS), strict=True))
    base = [float(floor)] * len(mode["allowed"])
    for kind, (colour, opacity) in KINDS.items():
        path = ""
        for place, count in enumerate(mode[kind]):
            if count:
                tall = BARS * count / most
                base[place] -= tall
                path += f"M{LEFT + width * place:.1f} {base[place]:.1f}h{width - 1:.1f}v{tall:.1f}h{1 - width:.1f}z"
        if path:
            parts.append(f'<path d="{path}" class="{colour}" fill-opacity="{opacity}"/>')
    return parts + _breaker(found, mode, floor + 13)


def _breaker(found: dict[str, Any], mode: dict[str, Any], y: int) -> list[str]:
    """Return the breaker of a mode: when it was open, its probes, and the write-back."""
    opened, recovered = mode["changes"]
    begin, end = _x(found, opened["at"]), _x(found, mode["probes"][-1]["at"])
    parts = [
        text(16, y + 4, "breaker"),
        line(f"M{LEFT} {y}H{begin}M{end} {y}H{RIGHT}", "green-line", ' stroke-width="2"'),
        line(f"M{begin} {y}H{end}", "red-line", ' stroke-width="2" stroke-dasharray="3 3"'),
    ]
    for probe in mode["probes"]:
        x = _x(found, probe["at"])
        parts.append(f'<circle cx="{x}" cy="{y}" r="4.5" class="green"/>' if probe["answered"] else cross(x, y, 4))
    if recovered["written_back"]:
        words = f"{recovered['written_back']} units written back"
        parts.append(text(end + 10, y + 17, words, kind="blue"))
    return parts


def _legend(y: int) -> list[str]:
    """Return the legend in two rows: answers, then the storage and its breaker."""
    parts = []
    for place, (kind, (colour, opacity)) in enumerate(KINDS.items()):
        x = 16 + 150 * place
        parts.append(f'<rect x="{x}" y="{y - 40}" width="10" height="12" class="{colour}" fill-opacity="{opacity}"/>')
        parts.append(text(x + 18, y - 29, kind))
    return [
        *parts,
        line(f"M466 {y - 34}h26", "amber-line", ' stroke-width="4"'),
        text(500, y - 29, "decided without Redis"),
        line(f"M16 {y - 5}h26", "red-line", ' stroke-width="2" stroke-dasharray="3 3"'),
        text(50, y, "breaker open"),
        cross(210, y - 5, 4),
        text(222, y, "probe fails"),
        f'<circle cx="370" cy="{y - 5}" r="4.5" class="green"/>',
        text(382, y, "probe succeeds, breaker closes"),
    ]


if __name__ == "__main__":
    write(draw_pictures())
