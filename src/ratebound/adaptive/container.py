"""The processor time that this process may use, and that is used: of its container, or of the machine.

A container with a quota of half a CPU is full when it uses half a CPU, whatever the machine does. So if a control group
around this process has a quota, it counts; the tightest one, if there are several. Otherwise the machine counts: the
CPUs that this process may run on.
"""

import os
from pathlib import Path
from typing import NamedTuple

from ratebound.adaptive import machine


class ProcessorTime(NamedTuple):
    """Processor time that was used until now, in seconds of one CPU, and the number of CPUs that may be used.

    `of` names what was measured: two readings can be compared only if it is the same.
    """

    of: str
    used: float
    cpus: float


class Processors:
    """A reader of the processor time of this process's container or machine. `root` is where its files are found.

    Raises ModuleNotFoundError if this system has no such files, and psutil is not installed.
    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self._root = Path(root)
        self.read()  # raises now, and not when the first request comes

    def read(self) -> list[ProcessorTime]:
        """Return the processor time of each control group that has a quota, or else that of the machine."""
        return self._of_groups() or [self._of_machine()]

    def _of_groups(self) -> list[ProcessorTime]:
        found = []
        for folder, usage_folder in self._folders():
            quota = _quota(folder)
            used = None if quota is None else _used(usage_folder)
            if quota is not None and used is not None:
                found.append(ProcessorTime(str(folder), used, quota))
        return found

    def _folders(self) -> list[tuple[Path, Path]]:
        """Return the folders of the control groups around this process, from the inside out: that of the quota, and
        that of the usage, which differ in version 1."""
        paths: dict[str, str] = {}  # by controller; that of version 2 has no name
        for line in _lines(self._root / "proc/self/cgroup"):
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            paths |= dict.fromkeys(controllers.split(","), path)
        mounts: dict[str, list[tuple[str, str]]] = {}  # a container may see those of its host, too
        for line in _lines(self._root / "proc/self/mountinfo"):
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
                continue
            names = [""] if kind[0] == "cgroup2" else kind[2].split(",")
            for name in names:
                mounts.setdefault(name, []).append((fields[3], fields[4]))
        found = []
        for mount in mounts.get("", ()) if "" in paths else ():
            found += [(folder, folder) for folder in self._upwards(*mount, paths[""])]
        for place, mount in enumerate(mounts.get("cpu", ()) if "cpu" in paths else ()):
            quotas = self._upwards(*mount, paths["cpu"])
            accounts = mounts.get("cpuacct", [])[place : place + 1] or [mount]
            usages = self._upwards(*accounts[0], paths.get("cpuacct", paths["cpu"]))
            found += zip(quotas, usages, strict=False)
        return found

    def _upwards(self, mounted: str, point: str, path: str) -> list[Path]:
        """Return the folder of a group and those above it. A container may see its own group as the root."""
        top = self._root / point.lstrip("/")
        inner = path[len(mounted.rstrip("/")) :] if path.startswith(mounted.rstrip("/") + "/") else ""
        folder = top / inner.lstrip("/")
        if ".." in folder.parts or not folder.is_dir():
            folder = top
        return [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]

    def _of_machine(self) -> ProcessorTime:
        if (self._root / "proc/stat").exists():
            return _machine_of(_lines(self._root / "proc/stat"))
        return ProcessorTime("machine", *machine.processor_time())


def _quota(folder: Path) -> float | None:
    """Return the quota of a control group in CPUs; None if it has none."""
    words = " ".join(_lines(folder / "cpu.max")).split()  # version 2
    if not words:
        words = _lines(folder / "cpu.cfs_quota_us") + _lines(folder / "cpu.cfs_period_us")
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):  # "max" or -1
        return None
    return int(words[0]) / int(words[1])


def _used(folder: Path) -> float | None:
    """Return the processor time that a control group has used; None if it is not told."""
    for line in _lines(folder / "cpu.stat"):
        name, _, value = line.partition(" ")
        if name == "usage_usec" and value.isdigit():
            return int(value) / 1e6
    nanoseconds = "".join(_lines(folder / "cpuacct.usage"))
    return int(nanoseconds) / 1e9 if nanoseconds.isdigit() else None


def _machine_of(lines: list[str]) -> ProcessorTime:
    """Return the time that the CPUs of this process were busy, and their number, from /proc/stat."""
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    busy: dict[str, int] = {}
    for line in lines:
        name, *ticks = line.split() or [""]
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _, _, *others = map(int, ticks[:8])  # without idle and waiting for a disk
            busy[name] = user + nice + system + sum(others)
    counted = {name: ticks for name, ticks in busy.items() if name in allowed} or busy
    used = sum(counted.values()) / os.sysconf("SC_CLK_TCK")
    return ProcessorTime(f"machine {' '.join(counted)}", used, max(len(counted), 1))


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []
