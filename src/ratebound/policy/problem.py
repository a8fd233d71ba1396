"""What is wrong with a policy: every mistake at once, each by its place (law 9: it is told before it runs)."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ratebound.errors import RateboundError

Place = tuple[str | int, ...]


class Problem(NamedTuple):
    """One mistake. `place` leads to it, `line` is where it stands in the file, if it came from one."""

    place: Place
    message: str
    line: int | None = None

    @property
    def where(self) -> str:
        """The place as text: `rules[2].limits[0]`."""
        text = ""
        for step in self.place:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text


class PolicyError(RateboundError, ValueError):
    """A policy that cannot be read or cannot work. `problems` has all that is wrong with it."""

    def __init__(self, problems: Iterable[Problem], file: str = "") -> None:
        self.problems = tuple(problems)
        self.file = file
        super().__init__(self.problems, file)

    def __str__(self) -> str:
        return "\n".join(self._line(problem) for problem in self.problems)

    def _line(self, problem: Problem) -> str:
        line = "" if problem.line is None else f":{problem.line}"
        file = f"{self.file}{line}: " if self.file else ""
        where = f"{problem.where}: " if problem.place else ""
        return f"{file}{where}{problem.message}"


class Problems:
    """Collects problems, so that one mistake does not hide the next."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, place: Place, message: str) -> None:
        self.found.append(Problem(place, message))

    @contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """What is raised inside for a bad value becomes a problem at this place, whose name it does not repeat."""
        name = f"{place[-1]}: " if place else ""
        try:
            yield
        except PolicyError as error:
            for problem in error.problems:
                self.add((*place, *problem.place), problem.message.removeprefix(name))
        except (ValueError, TypeError) as error:
            self.add(place, str(error).removeprefix(name))

    def check(self) -> None:
        if self.found:
            raise PolicyError(self.found)


def nearest(word: object, known: Iterable[str]) -> str:
    """'did you mean …', or all that is known."""
    names = sorted({*filter(None, known)})
    near = difflib.get_close_matches(str(word)[:80].lower(), names, 1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(names) or 'none'}"


def chosen(label: str, value: object, known: Iterable[str]) -> str:
    """One of several words, or a ValueError that names the nearest."""
    names = tuple(known)
    if isinstance(value, str) and value in names:
        return value
    raise ValueError(f"{label} {shown(value)}: {nearest(value, names)}")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def as_texts(label: str, value: object) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes | dict):
        raise ValueError(f"{label} must be text or a list of texts, not {shown(value)}")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{label} must be text or a list of texts, not {shown(text)}")
    return texts
