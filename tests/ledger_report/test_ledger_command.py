"""The command `ratebound ledger`: reports, bills and audits in every format, and mistakes in words."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratebound import Limiter
from ratebound.cli.ledger import ledger
from ratebound.ledger import Ledger
from tests.ledger.ledgers import KINDS, new_url
from tests.ledger_report.filled import FORMULA, MARKUP, MONTH, fill, filled

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(new_url(request.param, request, tmp_path_factory.mktemp("ledger")))


def ran(url: str | None, *words: str, **environ: str | None) -> Result:
    variables = {"RATEBOUND_LEDGER": url, "RATEBOUND_LEDGER_SECRET": None, "COLUMNS": "120", **environ}
    return CliRunner().invoke(ledger, words, env=variables)


def printed(url: str, *words: str) -> str:
    found = ran(url, *words)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_report_for_people_has_bars_and_every_part(url: str) -> None:
    page = printed(url, "report", "--month", MONTH)
    assert "Usage in November 2026" in page
    assert "units 17   overage 2   allowed 6   denied 1 (14 %)" in page
    (monday,) = [line for line in page.splitlines() if line.strip().startswith("Mon 02")]
    assert "█" * 30 in monday
    assert [line.split()[-1] for line in page.splitlines() if "user:42" in line][-1] == "2"  # the overage
    assert "\u202e" not in page
    assert "\\u202e" in page


def test_a_month_without_usage_is_said_to_be_empty(url: str) -> None:
    assert "nothing was used in this month" in printed(url, "report", "--month", "2020-01")


def test_the_present_month_is_reported_without_a_month(url: str) -> None:
    assert json.loads(printed(url, "report", "--format", "json"))["zone"] == "UTC"


@pytest.mark.parametrize(
    ("name", "begin"),
    [("a.html", "<!doctype html>"), ("a.json", "{"), ("a.csv", "month,client,rule"), ("a.txt", "Usage in November")],
)
def test_the_name_of_the_file_says_the_format(url: str, tmp_path: Path, name: str, begin: str) -> None:
    assert printed(url, "report", "--month", MONTH, "--output", str(tmp_path / name)) == ""
    assert (tmp_path / name).read_text("utf-8").startswith(begin)


def test_a_bill_is_csv_or_json(url: str) -> None:
    expected = "month,client,rule,units,overage\n2026-11,user:42,month,12,2\n"
    assert printed(url, "overage", "--month", MONTH, "--format", "csv") == expected
    assert printed(url, "report", "--month", MONTH, "--format", "csv") == expected
    (line,) = json.loads(printed(url, "overage", "--month", MONTH, "--format", "json"))
    assert line == {"month": MONTH, "client": "user:42", "rule": "month", "units": 12, "overage": 2}
    assert "no overage in this month" in printed(url, "overage", "--month", "2020-01")


def test_names_in_csv_are_no_formulas_and_in_json_they_are_exact(url: str) -> None:
    text = printed(url, "top", "--by", "units", "--format", "csv")
    clients = {row["client"] for row in csv.DictReader(StringIO(text))}
    assert clients == {"user:42", f"'{FORMULA}", MARKUP}
    assert {row["client"] for row in json.loads(printed(url, "top", "--format", "json"))} == {
        "user:42",
        FORMULA,
        MARKUP,
    }


def test_the_usage_of_a_client_is_shown_by_month(url: str) -> None:
    found = json.loads(printed(url, "usage", "user:42", "--by", "month", "--format", "json"))
    assert [(row["begin"], row["rule"], row["units"]) for row in found] == [
        ("2026-11-01T00:00:00+00:00", "month", 12),
        ("2026-11-01T00:00:00+00:00", "search", 2),
    ]
    assert "2026-11-02 00:00" in printed(url, "usage", "user:42", "--rule", "search")
    assert "has used nothing in this time" in printed(url, "usage", "user:42", "--since", "2027-01-01")


def test_denials_begin_with_the_highest_rate(url: str) -> None:
    found = json.loads(printed(url, "denials", "--since", MONTH, "--format", "json"))
    assert [(row["rule"], row["rate"]) for row in found] == [("search", 0.2), ("month", 0.0)]
    assert "20 %" in printed(url, "denials")


def test_the_audit_trail_is_listed(url: str) -> None:
    (change,) = json.loads(printed(url, "audit", "--format", "json"))
    assert (change["by"], change["action"], change["target"]) == ("ann", "block", "203.0.113.7")
    assert "2026-11-03 09:30:00" in printed(url, "audit")


def test_a_client_of_a_ledger_of_digests_is_found_with_the_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/digests.db"
    with Ledger(url, secret=SECRET) as made:
        fill(made)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    asked = ("usage", "user:42", "--by", "month", "--rule", "search", "--format", "csv")
    expected = "begin,rule,units,allowed,denied,overage\n2026-11-01T00:00:00+00:00,search,2,2,1,0\n"
    assert ran(url, *asked, RATEBOUND_LEDGER_SECRET=SECRET).stdout == expected
    assert ran(url, *asked, "--secret-file", str(tmp_path / "secret")).stdout == expected
    assert ran(url, *asked).stdout == "begin,rule,units,allowed,denied,overage\n"
    assert "user:42" not in ran(url, "top").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", "--month", "26-11"], "cannot read the month '26-11'"),
        (["report", "--zone", "Mars"], "unknown time zone 'Mars'"),
        (["usage", "user:42", "--since", "soon"], "cannot read the time 'soon'"),
        (["top", "--ledger", "redis://:pass-word@localhost"], "cannot open ledger"),
        (["top", "--secret-file", "/nowhere/secret"], "/nowhere/secret: cannot read the secret"),
    ],
)
def test_a_mistake_is_said_in_one_line_with_status_2(url: str, words: list[str], expected: str) -> None:
    found = ran(url, *words)
    assert found.exit_code == 2
    assert expected in found.stderr
    assert "pass-word" not in found.stderr
    assert "Traceback" not in found.output


def test_a_ledger_must_be_named_and_be_there(tmp_path: Path) -> None:
    assert "Give --ledger" in ran(None, "top").stderr
    found = ran(f"sqlite:///{tmp_path}/none.db", "top")
    assert found.exit_code == 1
    assert found.stderr.startswith("the ledger could not be read: ")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_said(url: str, tmp_path: Path) -> None:
    found = ran(url, "report", "--month", MONTH, "--output", str(tmp_path / "none" / "a.html"))
    assert found.exit_code == 1
    assert "Traceback" not in found.output


def test_forgetting_a_client_asks_first(tmp_path: Path) -> None:
    url = filled(f"sqlite:///{tmp_path}/usage.db")
    refused = CliRunner().invoke(ledger, ["forget", "user:42", "--ledger", url], input="n\n")
    assert refused.exit_code == 1
    assert "user:42" in printed(url, "top", "--since", MONTH)
    done = CliRunner().invoke(ledger, ["forget", "user:42", "--ledger", url], input="y\n")
    assert " removed" in done.output
    assert "user:42" not in printed(url, "top", "--since", MONTH)
    assert printed(url, "forget", "user:42", "--yes") == "0 rows removed\n"


def test_forgetting_makes_no_ledger(tmp_path: Path) -> None:
    found = ran(f"sqlite:///{tmp_path}/none.db", "forget", "user:42", "--yes")
    assert found.exit_code == 1
    assert "there is no ledger" in found.output
    assert not (tmp_path / "none.db").exists()


def test_a_name_cannot_steer_the_terminal_that_csv_is_printed_to(tmp_path: Path) -> None:
    """What is printed is escaped: a terminal would obey it, and click would drop it from a pipe."""
    where = f"sqlite:///{tmp_path}/usage.db"
    name = "\x1b[2J=1+1"
    with Ledger(where, clients="name") as written:
        Limiter("1/minute as search", listeners=[written]).hit(name)
    rows = list(csv.DictReader(StringIO(printed(where, "top", "--format", "csv"))))
    assert [row["client"] for row in rows] == ["'\\x1b[2J=1+1"]
    assert [row["client"] for row in json.loads(printed(where, "top", "--format", "json"))] == [name]
    assert "\\x1b[2Jb has used nothing" in printed(where, "usage", "\x1b[2Jb")
