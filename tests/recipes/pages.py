"""The policies that docs show as recipes. Tests play the text of the page, so page and test cannot differ."""

import re
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[2] / "docs"


def recipe(page: str, heading: str, place: int = 0) -> dict[str, Any]:
    """Return a policy that stands below a heading of a page: the first one, or the one at `place`."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no heading {heading!r}"
    blocks = re.findall(r"^```yaml\n(.*?)^```", found[2], re.DOTALL | re.MULTILINE)
    tree: dict[str, Any] = yaml.safe_load(blocks[place])
    return tree


def code(page: str, heading: str) -> dict[str, Any]:
    """Run the Python below a heading of a page, and return its names."""
    text = (DOCS / page).read_text().partition(f" {heading}\n")[2]
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no Python below {heading!r}"
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names
