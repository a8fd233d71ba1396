"""The use of the CPU, from files as the kernel writes them."""

import os
import sys
from pathlib import Path

import pytest

from ratebound.adaptive import CpuUse
from ratebound.adaptive.container import Processors

needs_linux = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system has no /proc/stat")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat(*busy: int) -> str:
    """/proc/stat with so many busy ticks of each CPU."""
    lines = [f"cpu{number} {ticks} 0 0 1000 500 0 0 0 0 0" for number, ticks in enumerate(busy)]
    return "\n".join([f"cpu  {sum(busy)} 0 0 1000 500 0 0 0 0 0", *lines, "intr 1 2 3", "ctxt 5"]) + "\n"


def version_2(path: str = "/", root: str = "/") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": f"31 23 0:28 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw\n",
        "proc/stat": stat(0, 0),
    }


def version_1(path: str) -> dict[str, str]:
    return {
        "proc/self/cgroup": f"4:memory:/\n2:cpu,cpuacct:{path}\n0::/\n",
        "proc/self/mountinfo": (
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
            "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        ),
        "proc/stat": stat(0, 0),
    }


def loads(root: Path, signal: CpuUse, name: str, *texts: str) -> list[float]:
    """The load, one second after another, with these texts in a file."""
    found = []
    for second, text in enumerate(texts):
        write(root, {name: text})
        found.append(round(signal.load(100.0 + second), 6))
    return found


def test_half_a_cpu_is_all_of_a_container_that_has_half_a_cpu(tmp_path: Path) -> None:
    root = write(tmp_path, {**version_2(), "sys/fs/cgroup/cpu.max": "50000 100000\n"})
    usage = "sys/fs/cgroup/cpu.stat"
    write(root, {usage: "usage_usec 0\nuser_usec 0\n"})
    signal = CpuUse(1.0, Processors(root))
    texts = [f"usage_usec {used}\nuser_usec 0\n" for used in (0, 500_000, 750_000, 750_000)]
    assert loads(root, signal, usage, *texts) == [0.0, 1.0, 0.5, 0.0]


def test_the_tightest_of_several_groups_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **version_2("/pod/app"),
            "sys/fs/cgroup/cpu.stat": "usage_usec 0\n",
            "sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 0\n",
            "sys/fs/cgroup/pod/app/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/app/cpu.stat": "usage_usec 0\n",
        },
    )
    assert [(time.cpus, time.used) for time in Processors(root).read()] == [(1.0, 0.0)]
    write(root, {"sys/fs/cgroup/pod/app/cpu.max": "400000 100000\n"})
    signal = CpuUse(0.5, Processors(root))
    write(root, {"sys/fs/cgroup/pod/app/cpu.stat": "usage_usec 0\n"})
    signal.load(100.0)
    write(root, {"sys/fs/cgroup/pod/app/cpu.stat": "usage_usec 400000\n"})  # a tenth of four CPUs
    write(root, {"sys/fs/cgroup/pod/cpu.stat": "usage_usec 800000\n"})  # four fifths of one
    assert signal.load(101.0) == pytest.approx(1.6)


def test_a_container_that_sees_its_group_as_the_root_has_its_quota(tmp_path: Path) -> None:
    root = write(tmp_path, {**version_2("/../../app"), "sys/fs/cgroup/cpu.max": "150000 100000\n"})
    write(root, {"sys/fs/cgroup/cpu.stat": "usage_usec 2000000\n"})
    assert [(time.cpus, time.used) for time in Processors(root).read()] == [(1.5, 2.0)]
    below = write(
        tmp_path / "docker", {**version_2("/docker/ab", "/docker/ab"), "sys/fs/cgroup/cpu.max": "2000 1000\n"}
    )
    write(below, {"sys/fs/cgroup/cpu.stat": "usage_usec 1000000\n"})
    assert [(time.cpus, time.used) for time in Processors(below).read()] == [(2.0, 1.0)]


def test_version_1_has_other_files(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/app"
    root = write(
        tmp_path,
        {
            **version_1("/app"),
            f"{group}/cpu.cfs_quota_us": "25000\n",
            f"{group}/cpu.cfs_period_us": "100000\n",
            f"{group}/cpuacct.usage": "1500000000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": "9000000000\n",
        },
    )
    assert [(time.cpus, time.used) for time in Processors(root).read()] == [(0.25, 1.5)]


def test_without_a_quota_the_machine_counts(tmp_path: Path) -> None:
    root = write(tmp_path, {**version_2(), "sys/fs/cgroup/cpu.max": "max 100000\n", "proc/stat": stat(0, 0)})
    (time,) = Processors(root).read()
    assert (time.of.partition(" ")[0], time.used) == ("machine", 0.0)
    assert time.cpus in (1.0, 2.0)  # those of the two that this process may run on
    ticks = os.sysconf("SC_CLK_TCK")
    signal = CpuUse(0.8, Processors(root))
    assert loads(root, signal, "proc/stat", stat(0, 0), stat(ticks, ticks)) == [0.0, 1.25]


@pytest.mark.parametrize(
    "files",
    [
        {"proc/stat": stat(0)},
        {"proc/stat": stat(0), "proc/self/cgroup": "nonsense", "proc/self/mountinfo": "more - of it\n\n"},
        {**version_2("/gone"), "sys/fs/cgroup/cpu.max": "many 100000\n"},
        {**version_2(), "sys/fs/cgroup/cpu.max": "100000\n"},
        {**version_2(), "sys/fs/cgroup/cpu.max": "50000 0\n", "sys/fs/cgroup/cpu.stat": "usage_usec 5\n"},
        {**version_2(), "sys/fs/cgroup/cpu.max": "50000 100000\n"},  # and no usage
        {**version_2(), "sys/fs/cgroup/cpu.max": "50000 100000\n", "sys/fs/cgroup/cpu.stat": "usage_usec many\n"},
        {**version_2(), "sys/fs/cgroup/cpu.max": "50000 100000\n", "sys/fs/cgroup/cpuacct.usage": "\n"},
    ],
)
def test_files_that_tell_nothing_leave_it_to_the_machine(tmp_path: Path, files: dict[str, str]) -> None:
    assert [time.of.partition(" ")[0] for time in Processors(write(tmp_path, files)).read()] == ["machine"]


def test_a_second_mount_of_the_groups_hides_nothing(tmp_path: Path) -> None:
    files = version_2()
    files["proc/self/mountinfo"] += "40 23 0:28 /../.. /host/sys/fs/cgroup rw,relatime - cgroup2 cgroup rw\n"
    write(tmp_path, {**files, "host/sys/fs/cgroup/cpu.stat": "usage_usec 9\n", "sys/fs/cgroup/cpu.max": "1000 1000\n"})
    write(tmp_path, {"sys/fs/cgroup/cpu.stat": "usage_usec 2000000\n"})
    assert [(time.cpus, time.used) for time in Processors(tmp_path).read()] == [(1.0, 2.0)]


def test_other_processors_are_not_compared_with_those_before(tmp_path: Path) -> None:
    signal = CpuUse(1.0, Processors(write(tmp_path, {"proc/stat": stat(100)})))
    assert loads(tmp_path, signal, "proc/stat", stat(100), stat(100, 900_000_000))[1] == 0.0


def test_a_group_that_gets_a_quota_meanwhile_is_measured_from_then_on(tmp_path: Path) -> None:
    root = write(tmp_path, {**version_2(), "sys/fs/cgroup/cpu.max": "max 100000\n"})
    write(root, {"sys/fs/cgroup/cpu.stat": "usage_usec 7000000\n"})
    signal = CpuUse(1.0, Processors(root))
    assert signal.load(100.0) == 0.0
    write(root, {"sys/fs/cgroup/cpu.max": "100000 100000\n"})
    assert signal.load(101.0) == 0.0  # there is nothing to compare it with
    write(root, {"sys/fs/cgroup/cpu.stat": "usage_usec 8000000\n"})
    assert signal.load(103.0) == 0.5
    assert signal.load(104.0) == 0.0


def test_psutil_serves_where_there_are_no_files(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    (time,) = Processors(tmp_path).read()
    assert time.of == "machine"
    assert time.used > 0
    assert time.cpus >= 1


def test_without_files_and_psutil_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "ratebound\[adaptive\]"'):
        Processors(tmp_path)


@needs_linux
def test_the_cpu_of_this_machine_can_be_measured() -> None:
    signal = CpuUse(1.0)
    assert signal.load(0.0) == 0.0
    sum(range(10_000_000))
    assert signal.load(0.1) >= 0
