"""A small process beside pytest's workers, for tests that fork again and again."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

RunApart = Callable[..., Any]


@pytest.fixture(scope="package")
def run_apart() -> Iterator[RunApart]:
    """Return a function that calls another one in a small process, and raises what that raises: `run_apart(work, 7)`.

    A fork takes longer the more memory a process has. A worker of pytest has hundreds of megabytes, and this one 40.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as small:
        yield lambda work, *arguments: small.submit(work, *arguments).result()
