"""`make api`: what it prints works as printed."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """What the server prints when it has begun."""
    command = [sys.executable, str(ROOT / "examples" / "api" / "serve.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            text = "".join(lines)
            with httpx.Client(transport=httpx.HTTPTransport(retries=20)) as client:
                assert client.get(url_of(text) + "/health").status_code == 200
            yield text
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def url_of(text: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", text)
    assert found, text
    return found.group()


def section(text: str, title: str) -> str:
    """The commands below a comment."""
    return text.split(f"# {title}")[1].split("\n", 1)[1].split("\n\n")[0]


def run(script: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not on the PATH")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_an_allowed_request_says_what_is_left(served: str) -> None:
    answer = run(section(served, "allowed"))
    assert answer.startswith("HTTP/1.1 200")
    assert re.search(r'(?im)^ratelimit: "items/minute";r=\d+;t=\d+', answer)


def test_a_key_gives_another_tier(served: str) -> None:
    answer = run(section(served, "known by a key"))
    assert answer.startswith("HTTP/1.1 200")
    assert "q=100;w=60" in answer


def test_a_limit_is_hit(served: str) -> None:
    answer = run(section(served, "a limit that is hit"))
    assert answer.split()[:6] == ["401"] * 5 + ["429"]
    assert re.search(r"(?im)^retry-after: \d+", answer)
    assert "Too many attempts to log in" in answer


def test_a_leaky_bucket_serves_one_after_the_other(served: str) -> None:
    times = sorted(float(time) for time in re.findall(r"after ([\d.]+) s", run(section(served, "a leaky bucket"))))
    assert len(times) == 4
    assert times[-1] > 0.6  # the fourth waits for three turns of a quarter of a second


def test_a_rule_in_shadow_is_seen_in_the_metrics_and_refuses_nobody(served: str) -> None:
    answer = run(section(served, "a rule in shadow"))
    denied = re.search(
        r'rule="stricter",candidate="false",result="denied"\} (\d)|result="denied"[^}]*\} ([\d.]+)', answer
    )
    assert denied, answer
    assert run(section(served, "all metrics")).startswith("ratebound_")


def test_the_same_without_curl(served: str) -> None:
    """Each address that is printed answers; what `curl` is told is what is asked here."""
    lines = re.findall(r"curl [^&|;\n]+", served)
    assert lines, served
    for line in lines:
        words = [word for word in shlex.split(line) if word not in ("-i", "-s")]
        method = "POST" if "POST" in words else "GET"
        (address,) = [word for word in words if word.startswith("http://")]
        assert httpx.request(method, address).status_code in (200, 401, 429)


def test_the_root_says_where_to_look(served: str) -> None:
    url = url_of(served)
    answer = httpx.get(url)
    assert answer.status_code == 200
    paths = [path for text in answer.json().values() for path in re.findall(r"(?<!\w)/[\w/]+", text)]
    assert [path for path in paths if httpx.get(url + path).status_code == 404] == []
