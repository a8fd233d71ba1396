"""Many processes on one key of one Redis are granted exactly the count, and it does not matter what time they think."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratebound.limit import ALGORITHMS, BUCKETS
from tests.servers import Server

ROOT = Path(__file__).parents[2]
GRANTS = 400
WRONG = 130  # seconds
CLOCKS = {"right": (0, 0, 0, 0), "ahead": (0, 0, 0, WRONG), "behind": (0, 0, 0, -WRONG)}
ASKERS = [(kind, clocks) for kind in ("threads", "tasks") for clocks in CLOCKS]


class Hammers:
    """Four processes, each of four threads or of fifty tasks."""

    def __init__(self, kind: str, clocks: str, processes: list["subprocess.Popen[str]"]) -> None:
        self.name = f"{kind}-{clocks}"
        self.processes = processes
        self.wrong = [round(float(self._heard(process)[0]) - time.time()) for process in processes]

    def hit(self, key: str, limit: str, asks: int, processes: list["subprocess.Popen[str]"] | None = None) -> list[int]:
        """All processes, or some of them, at once, `asks` times in all; what each grant left."""
        processes = processes or self.processes
        line = json.dumps([asks // len(processes), key, limit])
        for process in processes:
            assert process.stdin
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return [left for process in processes for left in self._heard(process)]

    def _heard(self, process: "subprocess.Popen[str]") -> list[Any]:
        assert process.stdout
        line = process.stdout.readline()
        assert line, f"a process ended with {process.wait(10)}"
        answer: list[Any] = json.loads(line)
        return answer


@contextmanager
def hammer(kind: str, url: str, wrong: int, zones: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    """One process. It reads time zones from the folder `zones`."""
    command = [sys.executable, "-m", "tests.redis.hammer", kind, url, str(wrong)]
    environment = os.environ | ({} if zones is None else {"PYTHONTZPATH": str(zones)})
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module", params=ASKERS, ids="-".join)
def hammers(request: pytest.FixtureRequest, redis_url_server: Server) -> Iterator[Hammers]:
    kind, clocks = request.param
    url = f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=hammer-{kind}-{clocks}-"
    with ExitStack() as stack:
        processes = [stack.enter_context(hammer(kind, url, wrong)) for wrong in CLOCKS[clocks]]
        yield Hammers(kind, clocks, processes)


def limit_text(algorithm: str, now: int) -> str:
    """So short a period that a clock which is 130 s wrong would matter, and yet nothing comes back during the test."""
    if algorithm in BUCKETS:
        return f"1/100 seconds burst {GRANTS} {algorithm}"
    period = next(period for period in range(100, WRONG) if period - now % period > 60)
    return f"{GRANTS}/{period} seconds {algorithm}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_four_processes_on_one_key_are_granted_exactly_the_count_whatever_time_one_thinks_it_is(
    algorithm: str, hammers: Hammers, redis_url_server: Server
) -> None:
    assert max(map(abs, hammers.wrong)) in (range(10) if "right" in hammers.name else range(WRONG - 10, WRONG + 10))
    now: Any = redis_url_server.client().time()
    limit = limit_text(algorithm, now[0])
    each_once = list(range(GRANTS))

    enough = hammers.hit(f"enough:{algorithm}", limit, GRANTS)
    assert sorted(enough) == each_once, "as many asks as the limit has: none is denied"
    assert hammers.hit(f"enough:{algorithm}", limit, GRANTS) == [], "and that is all"

    too_many = hammers.hit(f"too many:{algorithm}", limit, 2 * GRANTS)
    assert sorted(too_many) == each_once, "twice as many asks at once"


# The local time on the server's clock by the rules that one process has, and by those of the other.
LOCAL_TIMES = {
    "they disagree about the day": ("00:30", "23:30"),
    "only their clocks are wrong about the day": ("23:58", "23:58"),
}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("local_times", LOCAL_TIMES)
def test_processes_with_other_rules_of_a_time_zone_and_wrong_clocks_share_one_calendar_count(
    local_times: str, kind: str, redis_url_server: Server, tmp_path: Path
) -> None:
    now: Any = redis_url_server.client().time()
    url = f"{redis_url_server.url}?timeout=5&connect_timeout=5&prefix=zones-{kind}-"
    limit = f"{GRANTS}/calendar-day in Test/Disputed"
    with ExitStack() as stack:
        both = Hammers(
            kind,
            "ahead and behind",
            [
                stack.enter_context(hammer(kind, url, wrong, zone_file(tmp_path / f"{wrong}", now[0], local)))
                for wrong, local in zip((WRONG, -WRONG), LOCAL_TIMES[local_times], strict=True)
            ],
        )
        assert [round(wrong, -1) for wrong in both.wrong] == [WRONG, -WRONG]
        begun = both.hit(local_times, limit, 100, both.processes[:1])
        assert len(begun) == 100
        granted = both.hit(local_times, limit, 2 * GRANTS)
    assert sorted(begun + granted) == list(range(GRANTS))


def zone_file(folder: Path, now: int, local: str) -> Path:
    """Write the zone Test/Disputed, in which the time is `local` at the instant `now`. Return the folder."""
    hours, minutes = map(int, local.split(":"))
    offset = (hours * 3600 + minutes * 60 - now + 43_200) % 86_400 - 43_200
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)  # no transitions, one type of local time, a name of four bytes
    zone = b"TZif" + bytes(16) + counts + struct.pack(">lbb", offset, 0, 0) + b"TST\0"
    (folder / "Test").mkdir(parents=True)
    (folder / "Test" / "Disputed").write_bytes(zone)
    return folder
