"""`ratebound loadtest` against real servers: one that tells the truth passes, and each lie fails its own check."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratebound.cli.loadtest import loadtest
from ratebound.limit import BUCKETS
from ratebound.loadtest.arrivals import parse_arrivals
from ratebound.loadtest.check import FAIL, PASS, UNKNOWN
from ratebound.loadtest.identities import Clients, IdentityMark
from ratebound.loadtest.plan import LoadPlan, LoadTarget
from ratebound.loadtest.report import ON_TIME, LoadReport, make_report
from ratebound.loadtest.run import LoadRun, run_load
from ratebound.notation import parse_limit
from tests.loadtest.limited_app import COST, COSTLY, LIAR, LIES, LIMITS
from tests.servers import HOST, free_port

ALGORITHMS = ("token-bucket", "gcra", "leaky-bucket", "fixed-window", "sliding-log", "sliding-counter")
KEPT = "The limit was kept"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has source addresses on all of 127.0.0.0/8")


def command(*arguments: str) -> Result:
    return CliRunner().invoke(loadtest, arguments)


def judged(result: Result) -> dict[str, str]:
    """The checks by name. Whether the load was sent in time depends on how busy this machine is."""
    assert result.exit_code in (0, 1, 3), result.output
    return {
        check["name"]: check["outcome"] for check in json.loads(result.stdout)["checks"] if check["name"] != ON_TIME
    }


@linux
@pytest.mark.parametrize("name", COSTLY)
def test_requests_that_cost_more_than_one_unit_are_judged(limited_app: str, name: str) -> None:
    load = (f"{limited_app}/{name}", "--rate", "160/s", "--for", "3.2s", "--clients", "2", "--limit", COSTLY[name])
    done = command(*load, "--cost", str(COST), "--json", "-")
    checks = judged(done)
    assert FAIL not in checks.values(), done.stdout
    assert checks[KEPT] == PASS, done.stdout
    wrong = judged(command(*load, "--cost", "1", "--json", "-"))
    assert wrong[KEPT] == FAIL


def test_a_limit_that_does_not_go_with_the_cost_is_refused_before_the_test() -> None:
    for limit in ("100/second burst 7", "3/second", "100/second sliding-counter"):
        done = command("http://127.0.0.1:1/", "--rate", "1/s", "--for", "1s", "--limit", limit, "--cost", "5")
        assert done.exit_code == 2
        assert limit in done.output


@linux
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_honest_server_passes_and_its_limit_is_found(limited_app: str, algorithm: str) -> None:
    url = f"{limited_app}/{algorithm}"
    done = command(
        url, "--rate", "160/s", "--for", "3.2s", "--clients", "2", "--limit", LIMITS[algorithm], "--json", "-"
    )
    checks = judged(done)
    assert FAIL not in checks.values(), done.stdout
    assert checks[KEPT] == PASS, done.stdout
    told = json.loads(done.stdout)["limit"]
    limit = parse_limit(LIMITS[algorithm])
    found = [parse_limit(text) for text in told["found"]]
    name = "token-bucket" if algorithm == "gcra" else algorithm
    (one,) = [candidate for candidate in found if candidate.algorithm == name]
    assert abs(one.count * limit.period_us / one.period_us - limit.count) <= 1, told
    assert abs(one.burst - limit.burst) <= 1, told
    if algorithm not in BUCKETS:
        assert one.period_us == limit.period_us, told


@linux
def test_the_limit_is_taken_from_the_headers_if_none_is_given(limited_app: str) -> None:
    done = command(f"{limited_app}/two", "--rate", "100/s", "--for", "2.5s", "--clients", "2", "--json", "-")
    assert judged(done)[KEPT] == PASS, done.stdout
    told = json.loads(done.stdout)["limit"]
    assert told["headers"] == "10 per 1 s; 16 per 2 s"
    assert "headers" in told["source"]


@linux
@pytest.mark.parametrize("name", ["fast-refill", "odd-window", "long-queue"])
@pytest.mark.parametrize("is_known", [True, False])
def test_no_check_blames_a_server_for_what_headers_cannot_say(limited_app: str, name: str, is_known: bool) -> None:
    limit = ["--limit", LIMITS[name]] if is_known else []
    source = f"header:X-Forwarded-For=10.9.{int(is_known)}.{{n}}"
    load = ["--rate", "poisson 30/s", "--for", "2.5s", "--clients", "2", "--identity", source]
    done = command(f"{limited_app}/{name}", *load, *limit, "--json", "-")
    checks = judged(done)
    assert FAIL not in checks.values(), done.stdout
    if is_known and name != "fast-refill":
        assert checks[KEPT] == PASS, done.stdout


@pytest.fixture(scope="module")
def lies(limited_app: str) -> dict[str, LoadReport]:
    """A load test of each path that lies, all at the same time."""

    def plan(lie: str) -> LoadPlan:
        clients = Clients(3, [IdentityMark("source")])
        arrivals = parse_arrivals("60/s", 2.6)
        return LoadPlan(targets=[LoadTarget(f"{limited_app}/{lie}")], arrivals=arrivals, clients=clients)

    async def run() -> list[LoadRun]:
        return await asyncio.gather(*(run_load(plan(lie)) for lie in LIES))

    runs = zip(LIES, asyncio.run(run()), strict=True)
    return {lie: make_report(one, limits=[parse_limit(LIAR)]) for lie, one in runs}


@linux
@pytest.mark.parametrize(
    ("lie", "name"),
    [
        ("one-more", KEPT),
        ("too-early", KEPT),
        ("starved", KEPT),
        ("starved", "All clients were served alike"),
        ("short-wait", "Retry-After is long enough"),
        ("long-wait", "Retry-After is not too long"),
        ("no-wait", "Refusals have Retry-After"),
        ("stuck", "The remaining units are true"),
        ("other-limit", "The policy is constant"),
        ("other-limit", "The headers name the limit"),
        ("broken", "The server answered"),
    ],
)
def test_a_lie_is_found(lies: dict[str, LoadReport], lie: str, name: str) -> None:
    report = lies[lie]
    checks = {check.name: check for check in report.checks}
    assert checks[name].outcome == FAIL, report.checks
    assert report.exit_status == 1
    if lie not in ("one-more", "too-early", "starved"):
        assert checks[KEPT].outcome == PASS, checks[KEPT]


@linux
def test_units_that_are_called_used_but_were_not_are_doubted(lies: dict[str, LoadReport]) -> None:
    checks = {check.name: check for check in lies["too-few"].checks}
    assert checks["The remaining units are true"].outcome == UNKNOWN
    assert "the client got as many as if none were" in checks["The remaining units are true"].why


@linux
def test_the_verdict_says_who_got_how_many_too_many(lies: dict[str, LoadReport]) -> None:
    assert all(verdict.too_many and not verdict.too_few for verdict in lies["one-more"].verdicts)
    starved = {verdict.client: verdict for verdict in lies["starved"].verdicts}
    assert starved[0].too_few >= 5
    assert [starved[1].words, starved[2].words] == ["exact", "exact"]


@linux
def test_a_report_is_one_page_without_scripts(limited_app: str, tmp_path: Path) -> None:
    page, numbers = tmp_path / "report.html", tmp_path / "report.json"
    url = f"{limited_app}/sliding-log?token=secret"
    done = command(
        url, "--rate", "60/s", "--for", "1.2s", "--clients", "2", "--html", str(page), "--json", str(numbers)
    )
    text = page.read_text()
    assert done.exit_code in (0, 3), done.output
    assert text.count('<svg class="picture"') == 3
    assert "<script" not in text
    assert "http://" not in text.replace(limited_app, "").replace("http-equiv", "")
    written = json.loads(numbers.read_text())
    assert written["granted"] + written["refused"] == 72
    for shown in (text, numbers.read_text(), done.output):
        assert "secret" not in shown
    assert "Latency" in done.stdout
    assert "The limit was kept: 20/second sliding-log for each of 2 clients: granted" in done.stdout


def test_an_assertion_that_does_not_hold_fails(limited_app: str) -> None:
    arguments = (f"{limited_app}/unlimited", "--rate", "50/s", "--for", "200ms", "--json", "-")
    failed = command(*arguments, "--assert", "p50<1ms", "--assert", "granted>=11", "--assert", "granted==10")
    assert failed.exit_code == 1
    checks = judged(failed)
    assert checks["Assertion granted>=11"] == FAIL
    assert checks["Assertion granted==10"] == PASS


def test_a_limit_that_was_not_reached_is_not_proven(limited_app: str) -> None:
    done = command(f"{limited_app}/unlimited", "--rate", "50/s", "--for", "200ms")
    assert done.exit_code == 3
    assert "was not reached: nothing was refused" in done.stdout


def test_a_limit_that_was_used_up_before_the_test_is_not_proven(limited_app: str) -> None:
    """The server may as well refuse everything: CI must not pass."""
    load = (f"{limited_app}/hourly", "--rate", "50/s", "--for", "200ms", "--limit", "3/hour")
    assert "granted 3, allowed 3" in command(*load).stdout
    again = command(*load)
    assert again.exit_code == 3
    assert "UNKNOWN  The limit was kept: every request was refused" in again.stdout
    assert "no refusal" not in again.stdout
    assert "no rate limit headers" not in again.stdout


def test_a_server_that_does_not_answer_cannot_be_judged() -> None:
    done = command(f"http://{HOST}:{free_port()}/", "--rate", "20/s", "--for", "300ms", "--limit", "5/second")
    assert done.exit_code == 3
    assert "UNKNOWN  The server answered: no request was answered (6 x connect)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "150"], "cannot read rate '150': expected for example '150/s'"),
        (["--rate", "0/s"], "cannot read"),
        (["--rate", "10/s", "--for", "30"], "cannot read duration '30': expected for example '30s'"),
        (["--ramp", "10/s"], "expected for example '10/s..200/s'"),
        (["--burst", "50"], "'burst 50 every 5s'"),
        ([], "give one of --rate 150/s"),
        (["--rate", "10/s", "--ramp", "1/s..2/s"], "give one of --rate 150/s"),
        (["--rate", "10/s", "--limit", "100"], "expected '/' or 'per' after the count"),
        (["--rate", "10/s", "--assert", "p99<5"], "A latency needs a unit"),
        (["--rate", "10/s", "--identity", "cookie"], "unknown identity 'cookie'"),
        (["--rate", "10/s", "--header", "nothing"], "cannot read the header"),
        (["--rate", "10/s", "--body", "@/no/such/file"], "/no/such/file"),
        (["--rate", "10/s", "--html", "/no/such/folder/x.html"], "/no/such/folder/x.html"),
        (["--rate", "30000/s"], "20000"),
        (["--rate", "10/s", "--for", "2h"], "at most 600 s"),
    ],
)
def test_wrong_usage_says_what_is_expected(arguments: list[str], words: str) -> None:
    done = command("http://127.0.0.1:9/", *arguments)
    assert done.exit_code == 2, done.output
    assert words in done.stderr


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "127.0.0.1:8000", "http://user:hidden@127.0.0.1/"])
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    done = command(url, "--rate", "10/s")
    assert done.exit_code == 2
    assert "URL" in done.stderr
    assert "hidden" not in done.output


def test_other_machines_are_tested_only_if_a_flag_says_so() -> None:
    done = command("http://192.0.2.1/", "--rate", "10/s", "--for", "1s")
    assert done.exit_code == 2
    assert "--allow-remote" in done.stderr


def test_a_remote_test_is_told_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        url = f"http://{HOST}:{closed.getsockname()[1]}/"
    done = command(url, "--rate", "20/s", "--for", "100ms", "--allow-remote")
    assert done.exit_code == 3
    assert done.stderr.startswith("--allow-remote: sending 20/s for 0.1 s to 127.0.0.1:")


def test_clients_on_another_machine_need_an_identity() -> None:
    done = command("http://192.0.2.1/", "--rate", "10/s", "--clients", "20", "--allow-remote")
    assert done.exit_code == 2
    assert "how does the server tell 20 clients apart?" in done.stderr


@pytest.mark.parametrize("package", ["httptools", "h2"])
def test_without_its_packages_the_command_says_what_to_install(package: str) -> None:
    load = ["ratebound", "loadtest", "http://127.0.0.1:9/", "--rate", "5/s", "--http2"]
    code = f"import sys; sys.modules['{package}'] = None; sys.argv = {load}; from ratebound.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f'{package} is not installed. Run: pip install "ratebound[loadtest]"\n'


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--identity", "bearer:@{file}"), "the file {file!r} is no text in UTF-8: expected one token per line"),
        (("--ca", "{file}"), "cannot use {file}: "),
        (("--ca", "{file}.not"), "cannot use {file}.not: No such file or directory"),
    ],
    ids=["tokens", "certificates", "missing certificates"],
)
def test_a_file_that_cannot_be_used_is_named(options: tuple[str, str], told: str, tmp_path: Path) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(b"\x1f\x8b\xff\x00")
    done = command(
        "https://127.0.0.1:9/", "--rate", "2/s", "--for", "500ms", *(text.format(file=file) for text in options)
    )
    assert done.exit_code == 2
    assert told.format(file=str(file)) in done.stderr
