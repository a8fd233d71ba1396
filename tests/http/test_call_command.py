"""The command `ratebound call`: what it says about the limits of real servers, and about those that do not answer."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratebound.cli.call import call
from ratebound.http import Headers
from ratebound.http.headers import FIELDS, Style
from tests.http.vendor_headers import recordings
from tests.http.vendor_server import answering, raw, recorded
from tests.policy.policy_server import tls_server
from tests.servers import HOST, free_port
from tests.web.serving import Web, serving

SECRET = "Bearer sk-live-4242424242424242"
NAMES = list(recordings(0))


def run(*arguments: str, stdin: str | None = None) -> Result:
    found = CliRunner().invoke(call, arguments, input=stdin, env={"COLUMNS": "100"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving("uvicorn") as server:
        yield server


# Our own middleware


def test_quotas_of_our_own_middleware_are_told_in_words(web: Web) -> None:
    found = run(web.url, "-H", "X-Forwarded-For: 198.51.100.1")
    assert (found.exit_code, found.stderr) == (0, "")
    first, style, quota, *rest = found.stdout.splitlines()
    assert first.startswith(f"GET {web.url}: 200 OK, after ")
    assert style == "Style: RateLimit fields of the IETF's draft-08 to draft-11"
    assert quota == "  rest/hour, requests: 19 of 20 left for the next 1 h (window of 1 h)"
    assert rest[0] == "Fields:"
    assert '  ratelimit-policy: "rest/hour";q=20;w=3600' in rest


def test_repeating_ends_at_a_refusal_and_tells_the_cost(web: Web) -> None:
    found = run(web.url, "-H", "X-Forwarded-For: 198.51.100.2", "--repeat", "30")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0] == "   1  200  rest/hour 19"
    assert lines[19:22] == ["  20  200  rest/hour 0", "  21  429  rest/hour 0", "A request costs 1 of rest/hour."]
    assert "Refused: nothing is left of “rest/hour”." in lines
    (retry,) = [line for line in lines if line.startswith("Retry: in ")]
    assert retry.endswith(", says Retry-After.")


def test_each_answer_is_one_line_of_json(web: Web) -> None:
    found = run(web.url, "-H", "X-Forwarded-For: 198.51.100.3", "--repeat", "25", "--json")
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == [200] * 20 + [429]
    assert [answer["quotas"][0]["remaining"] for answer in answers] == [*range(19, -1, -1), 0]
    refused = answers[-1]
    assert (refused["refused"], refused["reason"], refused["style"]) == (True, "rate", "draft-11")
    assert 0 < refused["retry_after"] <= 3600
    assert refused["quotas"][0]["window"] == 3600
    assert refused["unclear"] == []


@pytest.mark.parametrize("style", FIELDS)
def test_every_style_of_ours_is_named(style: Style) -> None:
    from ratebound import Limiter

    limiter = Limiter("5/minute as api", storage="memory://")
    pairs = Headers(style).pairs(limiter.hit("a"))
    with answering(lambda _: raw(200, pairs)) as server:
        found = run(server.url, "--json")
        (answer,) = [json.loads(line) for line in found.stdout.splitlines()]
        assert answer["style"] == ("draft-03" if style == "draft-03" else style)
        assert [(quota["limit"], quota["remaining"]) for quota in answer["quotas"]] == [(5, 4)]
        assert answer["unclear"] == []


# Vendors


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_response_is_shown(name: str) -> None:
    recording = recordings(int(time.time()))[name]
    with answering(lambda _: recorded(recording)) as server:
        found = run(f"{server.url}/v1/items")
    assert (found.exit_code, found.stderr) == (0, "")
    text = found.stdout
    assert ("\nRefused: " in text) == recording.advice.refused
    assert ("\nRetry: no, " in text) == (recording.advice.refused and recording.advice.should_retry is False)
    assert text.count(" left") + text.count("only the reset") >= len(recording.advice.quotas)
    assert "break" not in text
    if recording.advice.vendor:
        assert recording.advice.vendor in text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("GitHub", "  core, requests: 4,987 of 5,000 left, all come back in "),
        ("GitHub, secondary limit without a time", "Retry: in 1 min or later, and longer after each further refusal"),
        ("Okta, too many requests at once", "Refused: too many requests at once."),
        ("OpenAI", "  tokens: 21,000 of 30,000 left, they come back steadily, all in 18 s"),
        ("OpenAI, no credit", "Refused: credit or a quota is spent."),
        ("Shopify REST", "  requests: 8 of 40 left, they come back steadily, all in 16 s (20 s from empty to full)"),
        ("Shopify GraphQL, refused", "Retry: in 800 ms, says the body."),
        ("Anthropic, unified", "  unified-5h, percent: 58 of 100 left, all come back in "),
        ("Discord, refused", "Retry: in 1.34 s, says the body."),
        ("Docker Hub", "  requests: 76 of 100 left (window of 6 h)"),
        ("IETF draft-11, from a cache", "  - The response comes from a cache (Age: 3), so its quotas were ignored."),
    ],
)
def test_what_a_vendor_says_is_told_in_words(name: str, line: str) -> None:
    recording = recordings(int(time.time()))[name]
    with answering(lambda _: recorded(recording)) as server:
        lines = run(server.url).stdout.splitlines()
    assert any(one.startswith(line) for one in lines), lines


def test_the_example_of_the_guide_is_what_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "calling-apis.md").read_text()
    (block,) = [block for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL) if "$ ratebound call " in block]
    example = block.splitlines()[1:]
    fields = [line.strip().split(": ", 1) for line in example[example.index("Fields:") + 1 :]]
    headers = [(name, value) for name, value in fields]
    with answering(lambda _: raw(429, headers, phrase="Too Many Requests")) as server:
        printed = run(f"{server.url}/v1/items").stdout.splitlines()
    assert printed[0].replace(server.url, "https://api.example.com").startswith(example[0].partition(", after")[0])
    assert printed[1:] == example[1:]


# What is unclear


@pytest.mark.parametrize(
    ("status", "fields", "note"),
    [
        (429, {"RateLimit": '"a";r=0;t=50', "Retry-After": "5"}, "The wait (5 s) ends before the reset of “a” (50 s)."),
        (200, {"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "9"}, "More is left of requests (9) than its limit"),
        (
            200,
            {"RateLimit": '"a";r=1;t=90', "RateLimit-Policy": '"a";q=5;w=60'},
            "The reset of “a” (1 min 30 s) is lat",
        ),
        (429, {"Retry-After": "0"}, "The server asks to retry at once, although it has refused."),
        (503, {"Retry-After": "999999999"}, "The server asks to wait 1 year 1 day, which is very long"),
        (429, {"RateLimit": '"a";r=3;t=50'}, "Something is left of every quota in the response"),
        (429, {"Retry-After": "5"}, "The refusal does not say which limit was exceeded."),
        (200, {"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "soon"}, "This field was ignored"),
        (
            200,
            {"RateLimit": '"a";r=1.5'},
            "This field was ignored, because it is malformed or tells no number: RateLim",
        ),
        (200, {"RateLimit": '"a";r=5;t=3', "X-RateLimit-Remaining": "7"}, "The fields disagree about what is left"),
        (200, {"Content-Type": "text/html"}, "The response says nothing about limits."),
        (200, {"RateLimit": '"a";r=5;t=3', "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}, "The server's clock is "),
    ],
)
def test_a_contradiction_is_named(status: int, fields: dict[str, str], note: str) -> None:
    with answering(lambda _: raw(status, list(fields.items()))) as server:
        lines = run(server.url).stdout.splitlines()
    assert any(line.startswith(f"  - {note}") for line in lines), lines


def test_a_redirect_is_not_followed() -> None:
    with answering(lambda _: raw(302, [("Location", "/other")])) as server:
        found = run(server.url)
        assert "a redirect, which was not followed" in found.stdout
        assert len(server.requests) == 1


# The request


def test_the_request_is_sent_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "fields").write_text(f"Authorization: {SECRET}\nX-Other: 1\n\n")
    with answering(lambda _: raw(200, [])) as server:
        run(f"{server.url}/a b/ü?q=1 2&x=é#part", "-H", f"@{tmp_path / 'fields'}", "-H", "accept: text/plain")
        run(server.url, "--data", '{"query": "{ shop }"}')
        run(server.url, "-X", "PUT", "-d", "@-", stdin="a=1")
        first, second, third = server.requests
    assert first.startswith(b"GET /a%20b/%C3%BC?q=1%202&x=%C3%A9 HTTP/1.1\r\n")
    assert f"Authorization: {SECRET}\r\nX-Other: 1\r\n".encode() in first
    assert first.lower().count(b"accept: ") == 1
    assert second.startswith(b"POST / HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\n" in second
    assert third.startswith(b"PUT / HTTP/1.1\r\n")
    assert b"Content-Type: application/x-www-form-urlencoded\r\n" in third


def test_secrets_of_the_request_are_never_printed() -> None:
    """Also if the server sends them back."""
    token = "7f3a9c2e5b8d41f6a0c3"

    def echo(request: bytes) -> bytes:
        sent = request.decode().replace("\r\n", " ")
        fields = [("RateLimit", f'"{SECRET}";r=1;t=5'), ("X-RateLimit-Resource", f"bot{token}-s3cr3t-value")]
        fields += [
            (f"Zendesk-RateLimit-bot{token}", "total=9; remaining=8; resets=7"),
            (f"X-RateLimit-BOT{token.upper()}", "1"),
        ]
        return raw(429, [*fields, ("X-RateLimit-Limit", sent), ("Retry-After", sent)], phrase=sent[:200])

    with answering(echo) as server:
        url = f"{server.url}/bot{token}/get?key=s3cr3t-value"
        for more in ([], ["--json"], ["--repeat", "2"]):
            found = run(url, "-H", f"Authorization: {SECRET}", *more)
            assert found.exit_code == 0
            for secret in (SECRET, SECRET.partition(" ")[2], token, token.upper(), "s3cr3t-value"):
                assert secret not in found.output, more
        port = server.port
    found = run(f"http://{HOST}:{port}/bot{token}/get?key=s3cr3t-value", "-H", f"Authorization: {SECRET}")
    assert found.exit_code == 1
    assert not any(secret in found.output for secret in (SECRET, token, "s3cr3t-value"))


def test_control_characters_of_the_server_are_made_visible() -> None:
    hostile = "\x1b[31mred\x1b]0;title\x07 \x9b2J"
    fields = [("X-RateLimit-Limit", f"5{hostile}"), ("X-RateLimit-Remaining", "1"), (f"X-RateLimit-{hostile[:2]}", "1")]
    fields += [("X-RateLimit-Resource", hostile), ("RateLimit", f'"{hostile}";r=1'), ("Retry-After", "1")]
    with answering(lambda _: raw(429, fields, phrase=hostile)) as server:
        for more in ([], ["--json"], ["--repeat", "2"]):
            found = run(server.url, *more)
            assert found.exit_code in (0, 1)
            assert all(char.isprintable() or char == "\n" for char in found.output), found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["api.example.com"], "cannot read the URL: expected a URL like https://api.example.com/v1/items\n"),
        (["ftp://example.com"], "cannot read the URL: expected a URL like https://api.example.com/v1/items\n"),
        (["http://"], "cannot read the URL: "),
        (["http://exa mple"], "cannot read the URL: "),
        (["http://[::1"], "cannot read the URL: "),
        (["http://a:99999"], "cannot read the URL: "),
        (["http://a:0"], "cannot read the URL: "),
        (["http://a..b"], "cannot read the URL: "),
        ([f"http://{'a' * 70}.example"], "cannot read the URL: "),
        (["http://me:pa55word@a"], "the URL has a user or a password: give them in a header field instead, -H @FILE\n"),
        (["http://a", "-X", "GE T"], "option -X: expected a method like GET, POST or DELETE\n"),
        (
            ["http://a", "-H", "s3cr3t"],
            "option -H: expected 'Name: value', for example -H 'Accept: application/json'\n",
        ),
        (["http://a", "-H", "A: b\r\nC: s3cr3t"], "option -H: the value of A has characters that no header field may"),
        (["http://a", "-H", "Content-Length: 5"], "option -H: Content-Length is set from the data of the request\n"),
        (["http://a", "-H", "@/does/not/exist"], "option -H: /does/not/exist: No such file or directory\n"),
        (["http://a", "-d", "@/"], "option --data: /: Is a directory\n"),
        (["http://a", "--ca", "x"], "option --ca is for an https URL\n"),
        (["https://a", "--ca", "/does/not/exist"], "option --ca: /does/not/exist: No such file or directory\n"),
    ],
)
def test_wrong_usage_has_status_2_and_a_message(arguments: list[str], message: str) -> None:
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(message)
    assert not any(secret in found.stderr for secret in ("s3cr3t", "pa55word"))


@pytest.mark.parametrize("arguments", [[], ["http://a", "--repeat", "0"], ["http://a", "--timeout", "0"]])
def test_clicks_own_messages_have_status_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


# No answer


def test_a_refused_connection_has_status_1() -> None:
    port = free_port()
    found = run(f"http://{HOST}:{port}/x")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr == f"no server answers at http://{HOST}:{port}/x: Connection refused\n"


def test_a_host_that_does_not_exist_has_status_1() -> None:
    found = run("http://does-not-exist.invalid/")
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith("no server answers at http://does-not-exist.invalid/: ")


def test_a_server_that_does_not_answer_has_status_1() -> None:
    with answering(lambda _: None) as server:
        found = run(server.url, "--timeout", "0.2")
        assert (found.exit_code, found.stderr) == (1, f"{server.url} did not answer within 0.2 s\n")


def test_a_server_that_sends_a_byte_now_and_then_is_given_up_at_the_deadline() -> None:
    program = (
        "import socket, sys, time\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "connection, _ = listener.accept()\n"
        "connection.sendall(b'HTTP/1.1 200 OK\\r\\nX-Slow: ')\n"
        "while True:\n"
        "    connection.sendall(b'a')\n"
        "    time.sleep(0.05)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        url = f"http://{HOST}:{int(process.stdout.readline())}"
        found = run(url, "--timeout", "0.5")
    finally:
        process.kill()
        process.communicate()
    assert (found.exit_code, found.stderr) == (1, f"{url} did not answer within 0.5 s\n")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"\x1b[31mSSH-2.0\r\n", "does not speak HTTP: BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "does not speak HTTP: HTTPException"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", "does not speak HTTP: LineTooLong"),
    ],
)
def test_an_answer_that_is_no_http_has_status_1(answer: bytes, message: str) -> None:
    with answering(lambda _: answer) as server:
        found = run(server.url)
        assert (found.exit_code, found.stderr) == (1, f"{server.url} {message}\n")


def test_a_closed_connection_has_status_1() -> None:
    with answering(lambda _: b"") as server:
        found = run(server.url)
    assert (found.exit_code, found.stdout) == (1, "")
    assert found.stderr.startswith(f"no server answers at {server.url}: ")


def test_a_body_that_does_not_end_does_not_hide_the_head() -> None:
    head = b"HTTP/1.1 429 No\r\nContent-Type: application/json\r\nRetry-After: 7\r\nContent-Length: 99\r\n\r\n{"
    program = (
        "import socket, sys, time\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "connection, _ = listener.accept()\n"
        f"connection.sendall({head!r})\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        found = run(f"http://{HOST}:{int(process.stdout.readline())}", "--timeout", "0.5")
    finally:
        process.kill()
        process.communicate()
    assert found.exit_code == 0
    assert "Retry: in 7 s, says Retry-After." in found.stdout


def test_tls_is_checked(tmp_path: Path) -> None:
    tls, authority = tls_server(tmp_path)
    with answering(lambda _: raw(200, [("RateLimit", '"a";r=1;t=2')]), tls) as server:
        url = f"https://localhost:{server.port}/"
        refused = run(url)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.startswith(f"the certificate of {url} is not valid here: ")
        assert "--ca FILE" in refused.stderr
        assert "a, requests: 1 left" in run(url, "--ca", str(authority)).stdout
    with answering(lambda _: raw(200, [])) as plain:
        url = f"https://{HOST}:{plain.port}/"
        found = run(url)
        assert (found.exit_code, found.stdout) == (1, "")
        assert found.stderr.startswith(f"{url} does not speak TLS as expected: ")


def test_the_command_is_listed_and_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "ratebound", "--help"], capture_output=True, text=True, timeout=60)
    assert "  call        Show what an API says about its limits.\n" in done.stdout
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-m", "ratebound", "call", f"http://{HOST}:{port}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr


def test_data_that_is_too_long_is_not_cut_off(tmp_path: Path) -> None:
    """Half of a body must not be sent."""
    (tmp_path / "data").write_bytes(b"x" * 10_000_001)
    found = CliRunner().invoke(call, ["http://127.0.0.1:9/", "--data", f"@{tmp_path / 'data'}"])
    assert found.exit_code == 2
    assert "expected at most 10,000,000 bytes" in found.output
