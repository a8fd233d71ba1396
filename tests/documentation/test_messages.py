"""Messages on the pages exist in the source, and the page of errors has every exception, problem type and message."""

import importlib
import pkgutil

import pytest

import ratebound
from ratebound.http.denial import ABNORMAL_USAGE
from ratebound.http.rejection import ERRORS, FORBIDDEN, TITLES, TYPES
from tests.documentation.messages import first_texts, is_in_source, is_quoted, quoted_messages
from tests.documentation.pages import ROOT, read

ERRORS_PAGE = "docs/reference/errors.md"
QUOTING = [page for page in (ERRORS_PAGE, "docs/troubleshooting.md") if (ROOT / page).exists()]
INVALID = ("InvalidLimit", "InvalidCost", "InvalidKey", "InvalidValue")
HTTP = ("CallError", "RefusedCall", "BadDescription", "_Refused", "problem")


@pytest.mark.parametrize(
    ("page", "message"), [(page, message) for page in QUOTING for message in quoted_messages(page)]
)
def test_a_quoted_message_is_in_the_source(page: str, message: str) -> None:
    assert is_in_source(message), f"{page} quotes a message that nothing says"


def test_a_message_that_nothing_says_is_found() -> None:
    assert is_in_source("count must be a whole number from 1 to …, not …")
    assert not is_in_source("count must be a whole number from 2 to …, not …")
    assert not is_in_source("not … count must be")


def public_exceptions() -> set[str]:
    """Return the names of the exceptions that packages of Ratebound export."""
    packages = [info.name for info in pkgutil.walk_packages(ratebound.__path__, "ratebound.") if info.ispkg]
    found = set()
    for package in ("ratebound", *packages):
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, BaseException):
                found.add(name)
    return found


def test_every_public_exception_is_on_the_page_of_errors() -> None:
    assert {"RateboundError", "CircuitOpen", "PolicyError", "RateLimitExceeded"} <= public_exceptions()
    page = read(ERRORS_PAGE)
    assert {name for name in public_exceptions() if f"| [`{name}`](" not in page} == set()


def test_every_problem_type_is_on_the_page_of_errors() -> None:
    page = read(ERRORS_PAGE)
    assert ABNORMAL_USAGE in TITLES
    types = {"about:blank" if kind == FORBIDDEN else TYPES + kind for kind in TITLES}
    assert {one for one in types if f"| `{one}` |" not in page} == set()
    assert {code for code in (*ERRORS.values(), *TITLES) if f"`{code}`" not in page} == set()


@pytest.mark.parametrize("name", [*INVALID, *HTTP])
def test_every_message_of_an_error_is_on_the_page_of_errors(name: str) -> None:
    quoted = quoted_messages(ERRORS_PAGE)
    found = {text for text in first_texts()[name] if sum(map(str.isalpha, text)) > 6}  # not names of fields alone
    assert {text for text in found if not is_quoted(text, quoted)} == set()
