"""The command `ratebound policy diff`: every difference between two policy files, and what starts anew."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ratebound.policy.runtime.policy_changes import PolicyChange

MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


def changes_as_json(changes: Sequence[PolicyChange]) -> str:
    """Return the changes as JSON."""
    return json.dumps({"changes": [change._asdict() for change in changes]}, ensure_ascii=False, indent=2)


def show_changes(old: str, new: str, changes: Sequence[PolicyChange], console: Console) -> None:
    """Print the changes, one in each line, and a summary."""
    for change in changes:
        mark, style = MARKS[change.what]
        line = Text(f"{mark} ", style=style).append(change.where, style="bold not dim")
        line.append(f": {change.detail}", style="bold" if change.starts_anew else "default")
        console.print(line, soft_wrap=True)
    anew = sum(change.starts_anew for change in changes)
    many = f"{len(changes)} change{'' if len(changes) == 1 else 's'}" if changes else "no changes"
    lost = f"{anew or 'nothing'} {'start' if anew > 1 else 'starts'} anew"
    console.print(Text(f"{old} -> {new}: {many}, {lost}"), soft_wrap=True)
