"""The files of the page. They are the same for everybody, and hold no data: the page asks the API for it."""

from importlib.resources import files
from typing import NamedTuple

INDEX = "index.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page."""

    content_type: str
    content: bytes


def page_files() -> dict[str, PageFile]:
    """Return all files of the page by their paths below the mount. The page itself has an empty path."""
    found: dict[str, PageFile] = {}
    for one in files("ratebound.admin").joinpath("page").iterdir():
        stem, dot, suffix = one.name.rpartition(".")
        kind = TYPES.get(dot + suffix)
        if stem and kind is not None:
            found["" if one.name == INDEX else one.name] = PageFile(kind, one.read_bytes())
    return found
