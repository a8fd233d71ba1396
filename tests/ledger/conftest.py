"""Ledgers of both kinds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratebound.ledger import Ledger
from tests.ledger.ledgers import KINDS, new_url, opened


@pytest.fixture(params=KINDS)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, request, tmp_path)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    yield from opened(ledger_url)


@pytest.fixture
def sqlite_ledger(tmp_path: Path) -> Iterator[Ledger]:
    yield from opened(f"sqlite:///{tmp_path}/usage.db")
