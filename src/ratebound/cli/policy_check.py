"""The command `ratebound policy check`: a file's mistakes, and named warnings with the line of each."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from ratebound.policy import PolicyError, Problem
from ratebound.policy.lint.checks import advise
from ratebound.policy.lint.known_mistakes import Advice
from ratebound.policy.load.document import SUFFIXES, Lines, parse
from ratebound.policy.load.loader import load_policy
from ratebound.policy.problem import Place

INDENT = "   "


class Findings(NamedTuple):
    """The problems of a file, which cannot work then, or the warnings about it."""

    file: str
    problems: tuple[Problem, ...]
    warnings: list[tuple[Advice, int | None]]
    ignored: int = 0
    rules: int = 0

    def json(self) -> str:
        """Return the findings as JSON."""
        told = {
            "file": self.file,
            "problems": [
                {"line": problem.line, "place": problem.where, "message": problem.message} for problem in self.problems
            ],
            "warnings": [
                {
                    "name": warning.name,
                    "line": line,
                    "place": warning.where,
                    "wrong": warning.wrong,
                    "why": warning.why,
                    "instead": warning.instead,
                }
                for warning, line in self.warnings
            ],
            "ignored": self.ignored,
            "rules": self.rules,
        }
        return json.dumps(told, ensure_ascii=False, indent=2)


def check_file(
    file: str,
    functions: Mapping[str, Callable[..., Any]],
    environ: Mapping[str, str],
    workers: int,
    ignore: Collection[str] = (),
) -> Findings:
    """Load a policy file and return its findings. Warnings in `ignore` are only counted."""
    try:
        policy = load_policy(file, functions=functions, environ=environ)
    except PolicyError as error:
        return Findings(file, error.problems, [])
    _, lines = parse(Path(file).read_text("utf-8"), SUFFIXES[Path(file).suffix.lower()])
    found = advise(policy, workers=workers)
    kept = [(warning, _line(warning.place, lines)) for warning in found if warning.name not in ignore]
    return Findings(file, (), kept, len(found) - len(kept), len(policy.rules))


def show_findings(found: Findings, console: Console) -> None:
    """Print the warnings and a summary."""
    width = max(min(console.width, 100), 50)
    for warning, line in found.warnings:
        where = f"{found.file}:{line}" if line else found.file
        console.print(Text(f"{where}: {warning.where}: ").append(warning.name, style="bold yellow"), soft_wrap=True)
        for label, words in (("wrong", warning.wrong), ("why", warning.why), ("instead", warning.instead)):
            first, *more = wrap(words, width - 12)
            text = Text(f"{INDENT}{label:<9}", style="dim").append(first, style="not dim")
            for one in more:
                text.append(f"\n{INDENT}{'':<9}{one}", style="not dim")
            console.print(text)
    many = len(found.warnings)
    ignored = f" ({found.ignored} ignored)" if found.ignored else ""
    told = "no warnings" if not many else f"{many} warning{'s' if many > 1 else ''}"
    rules = f"{found.rules} rule{'' if found.rules == 1 else 's'}"
    console.print(Text(f"{found.file}: {rules}, no mistakes, {told}{ignored}"), soft_wrap=True)


def _line(place: Place, lines: Lines) -> int | None:
    """Return the line of a place, or of the nearest enclosing one."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)
