"""Draw docs/pictures/architecture.svg: the way of one request, for the library, the middleware and the service.

python tools/draw_architecture.py
"""

from typing import NamedTuple

from drawing import line, picture, text, write

WIDTH, HEIGHT = 640, 598
NARROW = 620  # pixels of the picture on the page, below which texts are larger
STYLE = (
    f"text{{font-size:19px}}.head{{font-size:20px;font-weight:bold}}"
    f"@media(min-width:{NARROW}px){{text{{font-size:15px}}.head{{font-size:16px}}}}"
)


class Box(NamedTuple):
    """A step: its place, its name, and lines that say what it does."""

    x: int
    y: int
    width: int
    name: str
    lines: tuple[str, ...]
    colour: str = "blue"

    @property
    def height(self) -> int:
        """The height that its lines need."""
        return 40 + 24 * len(self.lines)

    @property
    def bottom(self) -> int:
        """The lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> int:
        """The position of its centre line."""
        return self.x + self.width // 2


LIBRARY = Box(16, 20, 196, "Library", ("limiter.hit(…)",), "green")
MIDDLEWARE = Box(222, 20, 200, "Middleware", ("FastAPI, Flask, …",), "green")
SERVICE = Box(432, 20, 192, "Service", ("HTTP, gRPC, RESP",), "green")
POLICY = Box(222, 114, 402, "Policy", ("which rules apply, to which client",))
CHECKS = Box(16, 208, 608, "Group of checks", ("keys, limits and cost: all of them or none",))
STORAGE = Box(
    16,
    302,
    608,
    "Storage: lock, clock, deadline, circuit breaker",
    ("memory, shared memory, Redis,", "PostgreSQL, SQLite, Memcached"),
)
KERNELS = Box(16, 420, 608, "Kernels", ("whole microseconds: buckets, windows, quotas, slots",))
DECISION = Box(16, 514, 294, "Decision", ("remaining, retry_after",), "amber")
RESPONSE = Box(346, 514, 278, "Response", ("headers, or a 429",), "amber")
BOXES = (LIBRARY, MIDDLEWARE, SERVICE, POLICY, CHECKS, STORAGE, KERNELS, DECISION, RESPONSE)


def draw_pictures() -> dict[str, str]:
    """Return the SVG text by file name."""
    parts = [part for box in BOXES for part in _box(box)]
    parts += [
        _down(LIBRARY.middle, LIBRARY, CHECKS),
        _down(MIDDLEWARE.middle, MIDDLEWARE, POLICY),
        _down(SERVICE.middle, SERVICE, POLICY),
        _down(POLICY.middle, POLICY, CHECKS),
        _down(CHECKS.middle, CHECKS, STORAGE),
        _down(STORAGE.middle, STORAGE, KERNELS),
        _down(DECISION.middle, KERNELS, DECISION),
        _arrow(
            f"M{DECISION.x + DECISION.width} {DECISION.y + 32}H{RESPONSE.x}", "l-7 -5v10z", RESPONSE.x, DECISION.y + 32
        ),
    ]
    title = "The way of one request through Ratebound"
    told = (
        "A call of the library makes a group of checks. The middleware and the service ask a policy first, which says"
        " which rules apply to which client. The storage decides the group at one instant, under its lock and clock,"
        " with the arithmetic of the kernels. The decision goes back to the caller, and becomes headers or a 429."
    )
    return {"architecture.svg": picture(WIDTH, HEIGHT, title, parts, told=told, style=STYLE)}


def _box(box: Box) -> list[str]:
    return [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"'
        f' class="{box.colour} {box.colour}-line" fill-opacity=".1" stroke-width="1.5"/>',
        text(box.middle, box.y + 25, box.name, "middle", kind="ink head"),
        *(text(box.middle, box.y + 50 + 24 * i, words, "middle") for i, words in enumerate(box.lines)),
    ]


def _down(x: int, upper: Box, lower: Box) -> str:
    return _arrow(f"M{x} {upper.bottom}V{lower.y}", "l-5 -7h10z", x, lower.y)


def _arrow(path: str, head: str, x: int, y: int) -> str:
    tip = f'<path d="M{x} {y}{head}" class="ink"/>'
    return line(path, "ink-line", ' stroke-width="1.5"') + tip


if __name__ == "__main__":
    write(draw_pictures())
