"""The report of a month: its numbers, CSV that is never a formula, and one HTML file that loads nothing."""

import csv
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratebound.ledger import Ledger
from ratebound.ledger.report import (
    BillLine,
    ClientOfReport,
    DayOfReport,
    MonthReport,
    RuleOfReport,
    UsedUnits,
    added_up,
    bill_csv,
    csv_text,
    month_report,
    report_json,
)
from ratebound.ledger.report_html import report_html
from ratebound.report.page import percent, visible
from ratebound.report.pictures import axis_number, nice_ceiling
from tests.ledger.ledgers import KINDS, new_url
from tests.ledger_report.filled import FORMULA, MARKUP, MONTH, filled, filled_ledger

NUMBERS = st.integers(min_value=-5, max_value=10**12)
USED = st.builds(UsedUnits, NUMBERS, NUMBERS.map(abs), NUMBERS.map(abs), NUMBERS)


@pytest.fixture(scope="module", params=KINDS)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    url = filled(new_url(request.param, request, tmp_path_factory.mktemp("ledger")))
    with Ledger(url, clients="name", writes=False) as found:
        yield found


def test_a_month_is_added_up_by_day_rule_and_client(ledger: Ledger) -> None:
    report = month_report(ledger, MONTH)
    assert report.total == UsedUnits(units=17, allowed=6, denied=1, overage=2)
    assert len(report.days) == 30
    assert {one.day.day: one.used for one in report.days if any(one.used)} == {
        2: UsedUnits(9, 3, 1, 0),
        15: UsedUnits(3, 2, 0, 0),
        30: UsedUnits(5, 1, 0, 2),
    }
    assert [(one.rule, one.used) for one in report.rules] == [
        ("search", UsedUnits(5, 4, 1, 0)),
        ("month", UsedUnits(12, 2, 0, 2)),
    ]
    assert report.clients[0] == ("user:42", "month", UsedUnits(12, 2, 0, 2))
    assert report.lines == [BillLine("user:42", "month", 12, 2)]


def test_days_and_the_month_are_those_of_the_zone(ledger: Ledger) -> None:
    report = month_report(ledger, MONTH, zone="Europe/Berlin")
    assert report.total.units == 12
    assert report.lines == []
    assert month_report(ledger, "2026-12", zone="Europe/Berlin").days[0].used == UsedUnits(5, 1, 0, 2)


def test_the_report_of_one_client_has_no_others(ledger: Ledger) -> None:
    report = month_report(ledger, MONTH, client="user:42")
    assert report.total == UsedUnits(14, 4, 1, 2)
    assert report.clients == []
    assert "script" not in report_html(report).partition("</style>")[2]
    assert month_report(ledger, MONTH, client="user:nobody").total == UsedUnits()


@pytest.mark.parametrize("month", ["2026-13", "2026", "november", "2026-1", "0000-01", "99999-01"])
def test_a_text_that_is_no_month_is_refused(ledger: Ledger, month: str) -> None:
    with pytest.raises(ValueError, match="month"):
        month_report(ledger, month)


def test_json_has_every_name_exactly_as_it_is(ledger: Ledger) -> None:
    found = json.loads(report_json(month_report(ledger, MONTH)))
    assert {one["client"] for one in found["clients"]} == {"user:42", FORMULA, MARKUP}
    assert found["overage"] == [{"client": "user:42", "rule": "month", "units": 12, "overage": 2}]
    assert found["total"] == {"units": 17, "allowed": 6, "denied": 1, "overage": 2}
    assert found["days"][1] == {"day": "2026-11-02", "units": 9, "allowed": 3, "denied": 1, "overage": 0}


def test_a_bill_is_a_line_for_each_client_and_rule() -> None:
    text = bill_csv(MONTH, [BillLine("user:42", "month", 12, 2), BillLine("=1+1", "a,b", 5, 1)])
    assert text == 'month,client,rule,units,overage\n2026-11,user:42,month,12,2\n2026-11,\'=1+1,"a,b",5,1\n'


@given(st.text(max_size=20))
@example("\r")
@example("a\rb")
def test_no_text_in_csv_is_a_formula(text: str) -> None:
    rows = list(csv.reader(StringIO(csv_text(["client"], [[text], ["-"], ["@x"]]), newline="")))
    assert rows[1:][-2:] == [["'-"], ["'@x"]]
    first = rows[1][0] if rows[1] else ""
    assert not first.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
    assert first.replace("\r\n", "\n").replace("'", "") == text.replace("\r\n", "\n").replace("'", "")


@pytest.mark.parametrize("text", ["a;=1+1", "a; @x", "a\t+1", "a,b\n=c", "=1;=2", "a|-1"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_cell_is_a_formula_whatever_a_spreadsheet_splits_at(text: str, separator: str) -> None:
    for line in csv_text(["client", "units"], [[text, 1]]).splitlines():
        for cell in line.split(separator):
            assert not cell.lstrip(' "').startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize("unseen", ["\x1b[0m", "\x0b", "\x00", "\xa0", "\xad", "\u200b", "\u202e", "\u3000", "\ufeff"])
@pytest.mark.parametrize("text", ["{}=1+1", " {}@x", "a;{}=1", "a\t {}+1", "{}{}-1"])
def test_no_text_is_a_formula_after_what_cannot_be_seen(text: str, unseen: str) -> None:
    """Spreadsheets and terminals drop such characters, and the formula behind them would be the cell's beginning."""
    line = csv_text(["client"], [[text.replace("{}", unseen)]]).removeprefix("client\n").strip('\n"')
    for cell in re.split("[;\t]", line.replace(unseen, "")):
        assert not cell.lstrip(" ").startswith(("=", "+", "-", "@"))


def test_numbers_in_csv_stay_numbers() -> None:
    assert csv_text(["a", "b"], [[-5, "-5"]]) == "a,b\n-5,'-5\n"


class Tags(HTMLParser):
    """The tags and attributes of a page, and the texts outside of its styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._is_style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._is_style:
            self.texts.append(data)


def test_the_page_loads_nothing_and_escapes_every_name(ledger: Ledger) -> None:
    page = report_html(month_report(ledger, MONTH))
    found = Tags(page)
    assert {tag for tag, _ in found.tags} & {"script", "img", "link", "iframe", "object", "a", "form"} == set()
    for _, attributes in found.tags:
        assert not {"src", "href", "srcset", "action", "onclick", "onload"} & attributes.keys()
    assert re.findall(r"url\((?!#)", page) == []
    assert "@import" not in page
    assert "user:<script>alert(1)</script>\\u202e" in found.texts
    assert FORMULA in found.texts
    assert "\u202e" not in page
    policy = next(a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_pictures_are_labelled_and_have_their_numbers_in_a_table(ledger: Ledger) -> None:
    page = report_html(month_report(ledger, MONTH))
    pictures = re.findall(r'<svg class="picture".*?</svg>', page, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        tree = ElementTree.fromstring(picture)
        title, words = tree.attrib["aria-labelledby"].split()
        named = {one.attrib["id"]: one.text for one in tree.iter() if "id" in one.attrib}
        assert "per day" in (named[title] or "")
        assert "The busiest day is 2026-11-02" in (named[words] or "")
    rows = re.findall(r"2026-11-02</th>(.*?)</tr>", page)
    assert rows[0] == "".join(f'<td class="number">{number}</td>' for number in (9, 3, 1, 0))


@given(st.data())
def test_every_report_makes_a_page(data: st.DataObject) -> None:
    names = st.text(max_size=30)
    days = [DayOfReport(date(2026, 2, 1 + n), data.draw(USED)) for n in range(data.draw(st.integers(0, 5)))]
    rules = [RuleOfReport(data.draw(names), data.draw(USED)) for _ in range(data.draw(st.integers(0, 3)))]
    clients = [
        ClientOfReport(data.draw(names), data.draw(names), data.draw(USED)) for _ in range(data.draw(st.integers(0, 3)))
    ]
    lines = [BillLine(data.draw(names), data.draw(names), data.draw(NUMBERS), data.draw(NUMBERS)) for _ in range(2)]
    total = added_up(one.used for one in days)
    report = MonthReport(
        "2026-02", "UTC", data.draw(st.none() | names), datetime.now(UTC), total, days, rules, clients, lines
    )
    page = report_html(report)
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(picture)
    heights = [float(one) for one in re.findall(r' height="([-\d.]+)"', page)]
    assert all(height >= 0 for height in heights)
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "p", "dl", "div", "dt"}
    allowed |= {"dd", "section", "span", "figure", "figcaption", "svg", "desc", "defs", "pattern", "line", "text", "g"}
    allowed |= {"rect", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in Tags(page).tags} <= allowed
    json.loads(report_json(report))


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0, "0 %"), (0.0001, "< 0.1 %"), (0.051, "5.1 %"), (0.5, "50 %"), (0.9999, "> 99.9 %"), (1, "100 %")],
)
def test_shares_are_never_rounded_to_nothing_or_all(share: float, expected: str) -> None:
    assert percent(share) == expected


@given(st.floats(0, 1e15))
def test_the_top_of_an_axis_is_above_every_bar(value: float) -> None:
    assert value <= nice_ceiling(value) <= max(1, value * 2)


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (7500, "7500"), (30_000, "30 k"), (1_500_000, "1.5 M"), (2e9, "2 G")]
)
def test_numbers_of_an_axis_are_short(value: float, expected: str) -> None:
    assert axis_number(value) == expected


def test_what_cannot_be_printed_is_written_as_its_number() -> None:
    assert visible("a\u202eb\x00é") == "a\\u202eb\\x00é"


def test_a_page_of_a_month_without_usage_says_so(tmp_path: Path) -> None:
    with Ledger(filled_ledger(tmp_path), clients="name", writes=False) as ledger:
        page = report_html(month_report(ledger, "2020-02"))
    assert "Nothing was used in this month." in page
    assert page.count("None in this month.") == 3
