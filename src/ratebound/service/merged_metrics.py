"""The metrics of all workers together, in the text format of Prometheus.

Counters are added up, and never fall: the last values of a worker that has died are kept, also if the control plane is
started again. A worker that is killed loses what it counted since it was last asked, at most about a second.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratebound.service.run_folder import replace_file

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# What is not added up: a state that all workers see, or the worst of them.
LARGEST = (
    "ratebound_breaker_open",
    "ratebound_keys",
    "ratebound_max_keys",
    "ratebound_evicted_keys_total",
    "ratebound_overflowed_checks_total",
)
SMALLEST = ("ratebound_limit_factor",)
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Family = Mapping[str, Any]
Key = tuple[str, tuple[tuple[str, str], ...]]  # the name of a sample, and its labels
Values = dict[str, dict[Key, float]]  # by family


class MergedMetrics:
    """The last metrics of each worker, and what those before it have counted.

    `kept` is a file for the counters of workers that have died.
    """

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self._kinds: dict[str, tuple[str, str]] = {}  # by family: its type and its help
        self._last: dict[int, tuple[int, Values]] = {}  # by slot: the generation, and its values
        self._retired: Values = {}
        self._restarts: dict[int, int] = {}  # by slot
        self._read()

    def take(self, slot: int, generation: int, families: Sequence[Family]) -> None:
        """Take the metrics that a worker has now. If it has replaced another one, the values of that one are kept."""
        before = self._last.get(slot)
        if before is not None and before[0] != generation:
            self._retire(before[1])
        values: Values = {}
        for family in families:
            name = str(family["name"])
            self._kinds[name] = (str(family["type"]), str(family["help"]))
            values[name] = {}
            for sample, labels, value in family["samples"]:
                _add(values[name], (sample, tuple(sorted(labels.items()))), value, sum)
        self._last[slot] = (generation, values)
        self._restarts[slot] = max(generation, self._restarts.get(slot, 0))
        if before is not None and before[0] != generation:
            self._write()

    @property
    def restarts(self) -> int:
        """The number of workers that were started again."""
        return sum(self._restarts.values())

    def text(self, own: Sequence[Family] = ()) -> str:
        """Return all metrics, with some of the control plane's `own`."""
        merged: Values = {name: {} for name in self._kinds}
        for values in (self._retired, *(values for _, values in self._last.values())):
            for name, samples in values.items():
                how = max if name in LARGEST else min if name in SMALLEST else sum
                for key, value in samples.items():
                    _add(merged.setdefault(name, {}), key, value, how)
        lines: list[str] = []
        for name in sorted(merged):
            _write_family(lines, name, *self._kinds.get(name, ("untyped", "")), merged[name])
        for family in own:
            found = {(str(name), tuple(labels.items())): value for name, labels, value in family["samples"]}
            _write_family(lines, str(family["name"]), str(family["type"]), str(family["help"]), found)
        return "\n".join(lines) + "\n"

    def _retire(self, values: Values) -> None:
        for name, samples in values.items():
            if self._kinds[name][0] in ("counter", "histogram") and name not in LARGEST:
                for key, value in samples.items():
                    _add(self._retired.setdefault(name, {}), key, value, sum)

    def _read(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            written = json.loads(self._kept.read_text("utf-8"))
            self._restarts = {int(slot): int(many) for slot, many in written["restarts"].items()}
            for name, kind, text, samples in written["families"]:
                self._kinds[name] = (kind, text)
                self._retired[name] = {(key, tuple((a, b) for a, b in labels)): value for key, labels, value in samples}

    def _write(self) -> None:
        families = [
            (name, *self._kinds[name], [(key, labels, value) for (key, labels), value in samples.items()])
            for name, samples in self._retired.items()
        ]
        with suppress(OSError):  # a full disk: what this process knows is still right
            replace_file(self._kept, json.dumps({"restarts": self._restarts, "families": families}))


def _add(values: dict[Key, float], key: Key, value: float, how: Any) -> None:
    values[key] = how((values[key], value)) if key in values else value


def _write_family(lines: list[str], name: str, kind: str, text: str, samples: Mapping[Key, float]) -> None:
    lines.append(f"# HELP {name} {text.replace(chr(92), chr(92) * 2).replace(chr(10), ' ')}")
    lines.append(f"# TYPE {name} {kind}")
    for (sample, labels), value in samples.items():
        shown = ",".join(f'{label}="{text.translate(ESCAPES)}"' for label, text in labels)
        number = int(value) if value == int(value) and abs(value) < 1e15 else value
        lines.append(f"{sample}{{{shown}}} {number}" if shown else f"{sample} {number}")
