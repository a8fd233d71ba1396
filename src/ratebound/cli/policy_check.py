"""The command `ratebound policy check`: a file's mistakes, and named warnings with the line of each."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from ratebound.cli.local_decisions import DENIALS, has_deny_cache, slice_effects
from ratebound.policy import Policy, PolicyError, Problem
from ratebound.policy.lint.checks import advise
from ratebound.policy.lint.known_mistakes import PolicyAdvice
from ratebound.policy.load.document import SUFFIXES, Lines, parse
from ratebound.policy.load.loader import load_policy
from ratebound.policy.problem import Place
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.kept_limits import KeptLimits
from ratebound.storage.urls import refusals_by_url

INDENT = "   "


class Note(NamedTuple):
    """A description of what a part of a policy does. It is no warning."""

    place: Place
    line: int | None
    text: str

    @property
    def where(self) -> str:
        """Return the place as text: `rules[2].slice`."""
        return Problem(self.place, "").where


class Findings(NamedTuple):
    """The problems of a file, which cannot work then, or the warnings and notes about it."""

    file: str
    problems: tuple[Problem, ...]
    warnings: list[tuple[PolicyAdvice, int | None]]
    ignored: int = 0
    rules: int = 0
    notes: Sequence[Note] = ()

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
            "notes": [{"line": note.line, "place": note.where, "text": note.text} for note in self.notes],
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
    try:
        KeptLimits(refusals_by_url(policy.storage)).check(CompiledPolicy(policy))
    except PolicyError as error:
        return Findings(file, tuple(one._replace(line=_line(one.place, lines)) for one in error.problems), [])
    found = advise(policy, workers=workers)
    kept = [(warning, _line(warning.place, lines)) for warning in found if warning.name not in ignore]
    notes = [Note(place, _line(place, lines), text) for place, text in _local_decisions(policy)]
    return Findings(file, (), kept, len(found) - len(kept), len(policy.rules) + len(policy.descriptors), notes)


def _local_decisions(policy: Policy) -> Iterator[tuple[Place, str]]:
    """Yield what slices and deny caches do to the rules."""
    for place, rule in enumerate(policy.rules):
        limits = [limit for plan in rule.plans.values() if isinstance(plan, tuple) for limit in plan]
        for text in dict.fromkeys(slice_effects(limits)):
            yield ("rules", place, "slice"), text
        if has_deny_cache(limits):
            yield ("rules", place, "deny_cache"), DENIALS


def show_findings(found: Findings, console: Console) -> None:
    """Print the warnings, the notes and a summary."""
    for warning, line in found.warnings:
        _show_place(found.file, line, warning.where, Text(warning.name, style="bold yellow"), console)
        for label, words in (("wrong", warning.wrong), ("why", warning.why), ("instead", warning.instead)):
            _show_words(label, words, console)
    shown: Place = ()
    for note in found.notes:
        if note.place != shown:
            _show_place(found.file, note.line, note.where, Text("note", style="bold"), console)
        shown = note.place
        _show_words("does", note.text, console)
    many = len(found.warnings)
    ignored = f" ({found.ignored} ignored)" if found.ignored else ""
    told = "no warnings" if not many else f"{many} warning{'s' if many > 1 else ''}"
    rules = f"{found.rules} rule{'' if found.rules == 1 else 's'}"
    console.print(Text(f"{found.file}: {rules}, no mistakes, {told}{ignored}"), soft_wrap=True)


def _show_place(file: str, line: int | None, where: str, name: Text, console: Console) -> None:
    at = f"{file}:{line}" if line else file
    console.print(Text(f"{at}: {where}: ").append_text(name), soft_wrap=True)


def _show_words(label: str, words: str, console: Console) -> None:
    first, *more = wrap(words, max(min(console.width, 100), 50) - 12)
    text = Text(f"{INDENT}{label:<9}", style="dim").append(first, style="not dim")
    for one in more:
        text.append(f"\n{INDENT}{'':<9}{one}", style="not dim")
    console.print(text)


def _line(place: Place, lines: Lines) -> int | None:
    """Return the line of a place, or of the nearest enclosing one."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place)
