"""The example plays a crowd: the least important requests are shed first, and it recovers by itself."""

import asyncio
import re
import runpy
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "examples" / "overload.py"


def test_reports_are_shed_before_searches_and_orders_never(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(runpy.run_path(str(PATH))["main"]())
    calm, crowd, again = (list(map(int, re.findall(r"\d+", line))) for line in capsys.readouterr().out.splitlines())
    assert calm == again == [15, 0, 5, 5, 5]
    offered, shed, reports, searches, orders = crowd
    assert offered == 120
    assert orders == 40
    assert reports == 4  # a tenth
    assert 4 <= searches < 40
    assert reports + searches + orders == offered - shed <= 60  # what the machine can bear
