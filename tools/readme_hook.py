"""The part of the build that makes the long description from README.md, called by hatchling.

A package page has no files beside it, and no ids at headings: relative links become their text with the path behind it,
links within the page become their text, and pictures are left out.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Code comes first: what is in it stays as it is. The text of a link may be code, and may run over a line.
CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`(?!\]))|(?P<mark>!?)\[(?P<text>(?:[^\[\]`]|`[^`\n]*`)*)\]\((?P<to>[^()\s]+)\)",
    re.DOTALL | re.MULTILINE,
)
FILES = "\nPaths in this text are those of the source distribution.\n"


def without_files(text: str) -> str:
    """Return a Markdown text whose links work without the files beside it."""
    return CODE_OR_LINK.sub(_absolute, text).rstrip() + "\n" + FILES


def _absolute(found: re.Match[str]) -> str:
    if found["code"] or "://" in found["to"]:
        return found[0]
    if found["mark"]:
        return ""
    path = found["to"].partition("#")[0]
    return f"{found['text']} ({path})" if path else found["text"]


class ReadmeHook(MetadataHookInterface):
    """Sets the long description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_files(text)}
