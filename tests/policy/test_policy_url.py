"""Policies from a URL: a real server that answers well, badly, slowly or not at all."""

import contextlib
import logging
import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ratebound import MemoryStorage
from ratebound.policy import FetchError, Gate, PolicyError, PolicyUrl, RequestView
from ratebound.policy.load import url_text
from ratebound.policy.load.url_text import fetch_text
from ratebound.policy.runtime import fetched_policy
from ratebound.policy.runtime.fetched_policy import FetchedPolicy, kept_file
from ratebound.testing import FakeClock
from ratebound.web import WebGate
from tests.policy.gates import decide, passes, request
from tests.policy.policy_server import PolicyServer, respond, serving, tls_server
from tests.servers import free_port, wait_until

FIVE = "rules: [{name: a, by: global, limits: 5/minute}]\n"
SIX = "rules: [{name: a, by: global, limits: 6/minute}]\n"
BROKEN = "rules: [{name: a, limits: five}]\n"


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with serving(FIVE) as found:
        yield found


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "policy.yaml"


def policy_url(server: PolicyServer, keep: Path, every: float = 0) -> PolicyUrl:
    return PolicyUrl(server.url, keep=keep, every=every)


def gate_on(policy: PolicyUrl) -> Gate:
    return Gate(policy, storage=MemoryStorage(clock=FakeClock()))


# Fetching


def test_a_policy_is_fetched_kept_and_confirmed_by_its_etag(server: PolicyServer, keep: Path) -> None:
    policy = policy_url(server, keep)
    assert passes(gate_on(policy), request()) == 5
    assert keep.read_text() == FIVE
    before = policy.confirmed
    os.utime(f"{keep}.fetched", (1, 1))
    assert policy.reload()
    assert policy.confirmed is not None
    assert before is not None
    assert policy.confirmed >= before, "a 304 confirms it, too"
    assert server.statuses == [200, 304]
    assert "if-none-match" not in server.asked[0]
    assert server.asked[1]["accept-encoding"] == "identity"


def test_a_change_is_in_force_and_keeps_counts(server: PolicyServer, keep: Path) -> None:
    policy = policy_url(server, keep)
    gate = gate_on(policy)
    assert passes(gate, request()) == 5
    server.text = SIX
    assert policy.reload()
    assert passes(gate, request()) == 1
    assert (policy.error, policy.text, keep.read_text()) == (None, SIX, SIX)
    assert server.statuses == [200, 200]


def test_a_server_without_validators_is_asked_for_the_whole_text(server: PolicyServer, keep: Path) -> None:
    server.answer = lambda handler: respond(handler, 200, server.text.encode())
    policy = policy_url(server, keep)
    stamp = keep.stat()
    assert policy.reload()
    assert (keep.stat().st_ino, keep.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns), "it is not written again"
    assert not {"if-none-match", "if-modified-since"} & server.asked[-1].keys()


def test_last_modified_is_sent_back(server: PolicyServer, keep: Path) -> None:
    date = "Mon, 16 Nov 2026 12:00:00 GMT"

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("If-Modified-Since") == date:
            return respond(handler, 304)
        return respond(handler, 200, FIVE.encode(), Last_Modified=date)

    server.answer = answer
    policy = policy_url(server, keep)
    assert policy.reload()
    assert server.asked[1]["if-modified-since"] == date


def test_ends_of_lines_stay_as_they_are(server: PolicyServer, keep: Path) -> None:
    server.text = FIVE.replace("\n", "\r\n")
    assert policy_url(server, keep).reload()
    assert server.statuses == [200, 304], "else its digest would never match"


def test_a_copy_that_was_changed_or_lost_is_fetched_anew(server: PolicyServer, keep: Path) -> None:
    policy = policy_url(server, keep)
    keep.write_text(SIX)
    assert policy.reload()
    assert keep.read_text() == FIVE
    keep.unlink()
    assert policy.reload()
    assert keep.read_text() == FIVE
    (keep.parent / "policy.yaml.fetched").write_text("[1")
    assert policy.reload()
    assert server.statuses == [200, 200, 200, 200], "validators are sent only for the very text that they came with"


def test_copies_are_private_and_nothing_is_left_beside_them(server: PolicyServer, keep: Path) -> None:
    policy_url(server, keep)
    assert sorted(path.name for path in keep.parent.iterdir()) == ["policy.yaml", "policy.yaml.fetched"]
    for path in keep.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(keep.parent.stat().st_mode) == 0o700


def test_json_and_toml_are_read_by_the_end_of_the_path(server: PolicyServer, tmp_path: Path) -> None:
    server.content_type = "application/octet-stream"
    server.text = '{"rules": [{"name": "a", "limits": "5/minute"}]}'
    assert PolicyUrl(f"{server.origin}/x/policy.json?version=3", keep=tmp_path / "p.json").policy.rules[0].name == "a"
    assert server.asked[0][":path"] == "/x/policy.json?version=3"
    server.text = '[[rules]]\nname = "b"\nlimits = "5/minute"\n'
    assert PolicyUrl(f"{server.origin}/policy.toml", keep=tmp_path / "p.toml").policy.rules[0].name == "b"
    assert PolicyUrl(f"{server.origin}/policies/3", keep=tmp_path / "q.toml").policy.rules[0].name == "b"


def test_tls_is_verified(tmp_path: Path, keep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, authority = tls_server(tmp_path)
    with serving(FIVE, tls=tls) as server:
        with pytest.raises(FetchError, match="certificate is not valid"):
            policy_url(server, keep)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert passes(gate_on(policy_url(server, keep)), request()) == 5


# Tokens and redirects


def test_a_token_is_sent_to_the_origin_and_to_no_other(
    server: PolicyServer, keep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATEBOUND_POLICY_TOKEN", "s3cret\n")

    def moved(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/policy.yaml":
            return respond(handler, 302, Location="/elsewhere/policy.yaml")
        return respond(handler, 200, FIVE.encode())

    server.answer = moved
    policy = policy_url(server, keep)
    assert [asked["authorization"] for asked in server.asked] == ["Bearer s3cret", "Bearer s3cret"]
    with serving(SIX) as other:
        server.answer = lambda handler: respond(handler, 302, Location=other.url)
        assert not policy.reload()
        assert "redirects to another origin" in str(policy.error)
        assert other.asked == []
    assert policy.text == FIVE


@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:1/x", "https://{host}/x", "//example.com/x", "ftp://{host}/x", "file:///etc/passwd"]
)
def test_a_redirect_to_another_origin_is_refused(server: PolicyServer, keep: Path, location: str) -> None:
    target = location.format(host=server.origin.partition("//")[2])
    server.answer = lambda handler: respond(handler, 307, Location=target)
    with pytest.raises(FetchError, match="redirects to another origin"):
        policy_url(server, keep)


def test_at_most_three_redirects_are_followed(server: PolicyServer, keep: Path) -> None:
    server.answer = lambda handler: respond(handler, 301, Location="policy.yaml")
    with pytest.raises(FetchError, match="more than 3 times"):
        policy_url(server, keep)
    assert len(server.asked) == 4


def test_a_token_that_cannot_be_sent_is_told_and_not_shown(
    server: PolicyServer, keep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATEBOUND_POLICY_TOKEN", "hunter2\r\nX-Other: 1")
    with pytest.raises(FetchError, match="RATEBOUND_POLICY_TOKEN is no token") as found:
        policy_url(server, keep)
    assert "hunter2" not in str(found.value)


def test_a_url_in_a_message_has_no_query(server: PolicyServer, keep: Path) -> None:
    server.answer = lambda handler: respond(handler, 404)
    with pytest.raises(FetchError, match="status 404") as found:
        PolicyUrl(f"{server.url}?signature=hunter2", keep=keep)
    assert "hunter2" not in str(found.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://user:hunter2@host/policy.yaml", "RATEBOUND_POLICY_TOKEN"),
        ("ftp://host/policy.yaml", "expected a URL like"),
        ("https:///policy.yaml", "expected a URL like"),
        ("https://host:port/policy.yaml", "host or port"),
        ("https://host/a b.yaml", "%20"),
        ("https://host/policies/3", "ends in .yaml"),
    ],
)
def test_a_url_that_cannot_be_used_is_an_error_before_anything_is_fetched(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as found:
        PolicyUrl(url)
    assert "hunter2" not in str(found.value)


def test_the_copy_has_the_format_of_the_url(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the format yaml"):
        PolicyUrl("https://host/policy.yaml", keep=tmp_path / "policy.json")


def test_the_default_copy_is_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = kept_file("https://host/a.toml"), kept_file("https://host/b.toml")
    assert first != second
    assert first.parent == tmp_path / "ratebound"
    assert first.suffix == ".toml"
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "systemd"))
    assert kept_file("https://host/a.toml").parent == tmp_path / "systemd" / "ratebound"


# Bad answers


def truncated(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(FIVE) + 10))
    handler.end_headers()
    handler.wfile.write(FIVE.encode())


def chunked_and_truncated(handler: BaseHTTPRequestHandler) -> None:
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(SIX), SIX.encode()))
    handler.close_connection = True


def without_length(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(SIX.encode())


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\xff not http\r\n\r\n")


def huge(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "50000000")
    handler.end_headers()


def huge_in_chunks(handler: BaseHTTPRequestHandler) -> None:
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b"10000\r\n" + b"#" * 0x10000 + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")


BAD = {
    "truncated": (truncated, "before it was complete"),
    "chunked and truncated": (chunked_and_truncated, "before it was complete"),
    "without length": (without_length, "how long the policy is"),
    "garbage": (garbage, "does not speak HTTP"),
    "huge": (huge, "more than 5 MB"),
    "huge in chunks": (huge_in_chunks, "more than 5 MB"),
    "404": (lambda handler: respond(handler, 404, SIX.encode()), "status 404"),
    "500": (lambda handler: respond(handler, 500, SIX.encode()), "status 500"),
    "401": (lambda handler: respond(handler, 401, SIX.encode()), "RATEBOUND_POLICY_TOKEN"),
    "part": (lambda handler: respond(handler, 206, SIX.encode()), "status 206"),
    "login": (lambda handler: respond(handler, 200, b"<p>", "text/html; charset=utf-8"), "web page"),
    "login as text": (lambda handler: respond(handler, 200, b"\n<!DOCTYPE html><p>", "text/plain"), "web page"),
    "another format": (lambda handler: respond(handler, 200, b"{}", "application/json"), "expected yaml"),
    "gzip": (lambda handler: respond(handler, 200, b"x", Content_Encoding="gzip"), "was not asked for"),
    "latin-1": (lambda handler: respond(handler, 200, b"rules: \xe4"), "UTF-8"),
    "not yaml": (lambda handler: respond(handler, 200, b"rules: ["), "cannot read this as YAML"),
    "no policy": (lambda handler: respond(handler, 200, BROKEN.encode()), "cannot read limit"),
    "empty": (lambda handler: respond(handler, 200, b""), "policy"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_leaves_the_old_policy_in_force_and_is_logged_once(
    server: PolicyServer, keep: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = policy_url(server, keep)
    server.answer, told = BAD[name]
    caplog.clear()
    for _ in range(3):
        assert not policy.reload()
    assert told in str(policy.error)
    assert server.url in str(policy.error)
    assert (policy.text, keep.read_text()) == (FIVE, FIVE)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    server.answer, server.text = None, SIX
    for _ in range(2):
        assert policy.reload()
    assert policy.error is None
    assert policy.text == SIX
    assert caplog.text.count("the policy can be fetched again") == 1


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_and_no_copy_is_an_error_at_the_start(server: PolicyServer, keep: Path, name: str) -> None:
    server.answer, told = BAD[name]
    with pytest.raises((FetchError, PolicyError), match=told):
        policy_url(server, keep)
    assert not keep.exists()


def test_a_304_that_was_not_asked_for_is_an_error(server: PolicyServer, keep: Path) -> None:
    server.answer = lambda handler: respond(handler, 304)
    with pytest.raises(FetchError, match="status 304"):
        policy_url(server, keep)


def test_each_mistake_of_a_policy_is_logged(server: PolicyServer, keep: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = policy_url(server, keep)
    for text in (BROKEN, BROKEN, BROKEN.replace("five", "six")):
        server.text = text
        assert not policy.reload()
    assert caplog.text.count("cannot read limit 'five'") == 1
    assert caplog.text.count("cannot read limit 'six'") == 1


def drips(handler: BaseHTTPRequestHandler) -> None:
    server = handler.server
    assert isinstance(server, PolicyServer)
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not server.is_over.wait(0.02):
            handler.wfile.write(b"#")


def drips_headers(handler: BaseHTTPRequestHandler) -> None:
    server = handler.server
    assert isinstance(server, PolicyServer)
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    with contextlib.suppress(OSError):
        while not server.is_over.wait(0.02):
            handler.wfile.write(b"#")


def says_nothing(handler: BaseHTTPRequestHandler) -> None:
    server = handler.server
    assert isinstance(server, PolicyServer)
    server.is_over.wait(30)


@pytest.mark.parametrize("answer", [drips, drips_headers, says_nothing])
def test_a_slow_server_is_left_after_a_time_in_all(server: PolicyServer, answer: object) -> None:
    server.answer = answer  # type: ignore[assignment]
    with pytest.raises(FetchError, match="no complete answer within 0.2 s"):
        fetch_text(server.url, "yaml", seconds=0.2)
    threads = [thread for thread in threading.enumerate() if thread.name == "ratebound fetch"]
    for thread in threads:
        thread.join(10)
    assert not [thread for thread in threads if thread.is_alive()], "its thread ends, too"


def test_a_look_up_that_hangs_is_left_after_the_same_time(keep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    # A resolver that hangs cannot be run here
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: hanging.wait(30) and [])
    policy = FetchedPolicy("http://host/policy.yaml", keep, seconds=0.1)
    with pytest.raises(FetchError, match="no complete answer"):
        policy.start()
    hanging.set()


def test_a_token_and_a_server_that_is_not_there(keep: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/policy.yaml"
    told = f"^{url}: no policy could be fetched: Connection refused. Check the address, and that its server runs$"
    with pytest.raises(FetchError, match=told):
        PolicyUrl(url, keep=keep)


def test_a_copy_that_cannot_be_written_leaves_the_old_policy_in_force(
    server: PolicyServer, keep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_url(server, keep)
    server.text = SIX

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetched_policy, "_replace", full)  # a full disk cannot be made here
    assert not policy.reload()
    assert "No space left" in str(policy.error)
    assert policy.text == FIVE


def test_a_folder_that_cannot_be_made_is_told_at_the_start(server: PolicyServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="cannot keep a copy"):
        policy_url(server, tmp_path / "file" / "policy.yaml")


def test_a_policy_from_a_server_cannot_choose_which_code_runs(server: PolicyServer, keep: Path) -> None:
    server.text = "rules: [{name: a, limits: 5/minute, cost: {call: 'antigravity:fly'}}]"
    with pytest.raises(PolicyError, match="'antigravity:fly' would be imported, and a policy from a URL cannot import"):
        policy_url(server, keep)
    assert "antigravity" not in sys.modules
    keep.parent.mkdir(exist_ok=True)
    keep.write_text(server.text)
    with pytest.raises(PolicyError, match="cannot import"):
        policy_url(server, keep)


def test_a_policy_from_a_server_names_functions_of_the_program(server: PolicyServer, keep: Path) -> None:
    def double(view: RequestView) -> int:
        return 2

    server.text = "rules: [{name: a, by: global, limits: 6/minute, cost: {call: double}}]"
    policy = PolicyUrl(server.url, keep=keep, every=0, functions={"double": double})
    assert passes(gate_on(policy), request()) == 3
    server.text = server.text.replace("double", "triple")
    assert not policy.reload()
    assert "unknown function 'triple'" in str(policy.error)


# Starts without the server


def test_a_start_without_the_server_uses_the_copy_and_says_so(keep: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with serving(FIVE, port) as server:
        policy_url(server, keep)
    caplog.clear()
    policy = policy_url(server, keep)
    assert passes(gate_on(policy), request()) == 5
    assert "refused" in str(policy.error)
    assert f"the copy in {keep} is used, which the server last confirmed at" in caplog.text
    assert not policy.reload()
    assert len(caplog.records) == 1, "the same failure is not logged again"
    with serving(SIX, port):
        assert policy.reload()
    assert policy.policy.rules[0].limits == "6/minute"


def test_the_copy_of_another_url_is_not_used(server: PolicyServer, keep: Path) -> None:
    policy_url(server, keep)
    server.answer = lambda handler: respond(handler, 500)
    with pytest.raises(FetchError, match="status 500"):
        PolicyUrl(f"{server.origin}/other.yaml", keep=keep)


def test_a_copy_may_be_delivered_with_the_program(server: PolicyServer, keep: Path) -> None:
    keep.parent.mkdir()
    keep.write_text(SIX)
    server.answer = lambda handler: respond(handler, 500)
    assert passes(gate_on(policy_url(server, keep)), request()) == 6
    server.answer = None
    policy = policy_url(server, keep)
    assert policy.text == FIVE


# Polling


def polls() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ratebound policy"]


def test_the_first_request_after_the_interval_begins_to_poll(server: PolicyServer, keep: Path) -> None:
    now = 0.0
    policy = PolicyUrl(server.url, keep=keep, every=0.05, clock=lambda: now)
    gate = gate_on(policy)
    before = polls()
    assert passes(gate, request(), most=2) == 2
    assert polls() == before, "it was fetched just now"
    now = 1.0
    server.text = SIX
    decide(gate, request())
    wait_until(lambda: keep.read_text() == SIX, 10, "the change is fetched")
    (thread,) = [thread for thread in polls() if thread not in before]
    del gate, policy
    thread.join(10)
    assert not thread.is_alive(), "nobody uses the policy any more"


def test_a_gate_that_never_decides_has_no_thread(server: PolicyServer, keep: Path) -> None:
    before = polls()
    policy = PolicyUrl(server.url, keep=keep, every=30)
    gate, web_gate = gate_on(policy), WebGate(policy, storage=MemoryStorage())
    assert gate.policy is policy.policy is web_gate.policy
    assert polls() == before


def test_several_processes_follow_one_file(server: PolicyServer, keep: Path) -> None:
    first, second = policy_url(server, keep), policy_url(server, keep)
    server.text = SIX
    assert first.reload()
    server.answer = lambda handler: respond(handler, 500)
    assert not second.reload(), "its own fetch failed"
    assert second.text == SIX


def test_a_forked_process_polls_by_itself(server: PolicyServer, keep: Path) -> None:
    """In a process of its own, because this one has threads that a fork would not survive."""
    program = f"""
        import os, sys, time
        from ratebound import MemoryStorage
        from ratebound.policy import Gate, PolicyUrl, RequestView

        policy = PolicyUrl({server.url!r}, keep={str(keep)!r}, every=0.05)
        gate = Gate(policy, storage=MemoryStorage())
        view = lambda: RequestView("GET", "/", peer="192.0.2.1")
        time.sleep(0.1)
        gate.decide(view())
        print("parent decides", flush=True)
        child = os.fork()
        if child == 0:
            print("child", flush=True)
            sys.stdin.readline()
            ends = time.monotonic() + 20
            while "6/minute" not in policy.text and time.monotonic() < ends:
                gate.decide(view())
                time.sleep(0.01)
            os._exit(0 if "6/minute" in policy.text else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with started:
        assert started.stdout is not None
        assert started.stdin is not None
        assert started.stdout.readline() == "parent decides\n"
        assert started.stdout.readline() == "child\n"
        server.text = SIX
        started.stdin.write("go\n")
        started.stdin.flush()
        assert started.wait(30) == 0


def test_adapters_take_a_url_as_text(server: PolicyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    gate = WebGate(server.url, storage=MemoryStorage())
    assert gate.policy.rules[0].limits == "5/minute"
    view = RequestView("GET", "/", peer="192.0.2.1")
    assert gate.before(view)
    with pytest.raises(TypeError, match="write it in the policy"):
        WebGate(server.url, switch="off")


def test_bounds_are_those_that_the_documentation_names() -> None:
    assert (url_text.SECONDS, url_text.MOST_BYTES, url_text.MOST_REDIRECTS) == (5.0, 5_000_000, 3)


def test_plain_http_to_another_host_is_warned_of(
    keep: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep.parent.mkdir()
    keep.write_text(FIVE)

    def nowhere(*arguments: object, **more: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)  # no test asks a real name server
    PolicyUrl("http://config.example/policy.yaml", keep=keep)
    assert "without TLS: anybody on the way can change it" in caplog.text


def test_the_time_of_a_confirmation_is_read_from_the_copy(server: PolicyServer, keep: Path) -> None:
    assert fetched_policy.age_of(keep) is None
    policy_url(server, keep)
    os.utime(f"{keep}.fetched", (time.time() - 1000, time.time() - 1000))
    age = fetched_policy.age_of(keep)
    assert age is not None
    assert 999 <= age < 100_000
