"""The errors of a policy: all of them in one exception, each with its place (law 9: errors are reported at load)."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ratebound.errors import RateboundError

Place = tuple[str | int, ...]


class Problem(NamedTuple):
    """One error in a policy.

    Attributes:
        place: The path of keys and indexes that leads to it.
        message: What is wrong, and what is expected.
        line: Its line in the file; None if the policy did not come from a file.
    """

    place: Place
    message: str
    line: int | None = None

    @property
    def where(self) -> str:
        """Return the place as one line of text: `rules[2].limits[0]`."""
        text = ""
        for step in self.place:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text if text.isprintable() else ascii(text)[1:-1]  # keys are as hostile as the file's author


class PolicyError(RateboundError, ValueError):
    """Raised for an invalid policy. `problems` holds every error in it.

    Args:
        problems: The errors.
        file: The name of the file, for messages.

    Examples:
        >>> from ratebound.policy import PolicyError, read_policy
        >>> try:
        ...     read_policy({"rules": [{"name": "api", "limits": "100/minut"}]})
        ... except PolicyError as error:
        ...     print(error.problems[0].where)
        rules[0].limits
    """

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
    """A collector of problems, so that one error does not hide the next."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, place: Place, message: str) -> None:
        """Note one problem."""
        self.found.append(Problem(place, message))

    @contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """Turn a ValueError, TypeError or PolicyError raised inside the block into problems at this place.

        A message that begins with the name of the place loses that prefix: the place is printed before it.
        """
        name = f"{place[-1]}: " if place else ""
        try:
            yield
        except PolicyError as error:
            for problem in error.problems:
                self.add((*place, *problem.place), problem.message.removeprefix(name))
        except (ValueError, TypeError) as error:
            self.add(place, str(error).removeprefix(name))

    def check(self) -> None:
        """Raise PolicyError if any problem was noted."""
        if self.found:
            raise PolicyError(self.found)


def nearest(word: object, known: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the closest known name, else the list of names that are expected."""
    names = sorted({*filter(None, known)})
    near = difflib.get_close_matches(str(word)[:80].lower(), names, 1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"expected one of {', '.join(names)}" if names else "none is defined"


def check_choice(label: str, value: object, known: Iterable[str]) -> str:
    """Return the value if it is one of the known names. Raises ValueError with a suggestion otherwise."""
    names = tuple(known)
    if isinstance(value, str) and value in names:
        return value
    raise ValueError(f"{label} {shown(value)}: {nearest(value, names)}")


def shown(value: object) -> str:
    """Return the repr of a value for an error message, cut short if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def as_texts(label: str, value: object) -> tuple[str, ...]:
    """Return a string or an iterable of strings as a tuple. Raises ValueError for anything else and for empty strings.
    `label` is the name in the message."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes | dict):
        raise ValueError(f"{label} must be a string or a list of strings, not {shown(value)}")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{label} must be a string or a list of strings, none of them empty, not {shown(text)}")
    return texts
