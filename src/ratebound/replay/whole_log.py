"""A whole log through a replay, from its first entry to its last."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ratebound.replay.even_times import EvenTimes
from ratebound.replay.log_replay import LogReplay
from ratebound.replay.read_log import LogReader

COLLECT_EVERY = 2_000_000  # entries


def replay_log(
    reader: LogReader, replay: LogReplay, *, spread: bool = True, on_batch: Callable[[], None] | None = None
) -> None:
    """Decide and count all entries of a log. `spread` spreads the entries of one second over it, if the log writes
    whole seconds. `on_batch` is called now and then, to show progress. Raises LogError if a log cannot be read."""
    times: EvenTimes | None = None
    with few_collections() as collect:
        for entries in reader:
            if times is None:
                times = EvenTimes(reader.resolution if spread else 1)
            replay.feed(*times.put(entries))
            collect(len(entries))
            if on_batch is not None:
                on_batch()
        if times is not None:
            replay.feed(*times.rest())
    replay.finish()


@contextmanager
def few_collections() -> Iterator[Callable[[int], None]]:
    """Look for garbage once in COLLECT_EVERY entries, and not for every 700 objects: entries are no garbage, and the
    search took a third of the time."""
    was_enabled = gc.isenabled()
    since = 0

    def collect(entries: int) -> None:
        nonlocal since
        since += entries
        if since >= COLLECT_EVERY:
            since = 0
            gc.collect(0)

    gc.disable()
    try:
        yield collect
    finally:
        if was_enabled:
            gc.enable()
