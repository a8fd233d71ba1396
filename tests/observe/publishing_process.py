"""Processes that publish their figures again and again, until they are killed: `python -m
tests.observe.publishing_process URL MANY`. Each of them writes one line after its first publication: its run, and its
process. They end with the process that has started them."""

import os
import sys
import time

from ratebound import GuardedStorage, StorageError
from ratebound.flow import run
from ratebound.observe.live_figures import LiveFigures
from ratebound.observe.shared_figures import SharedFigures
from ratebound.storage.urls import open_storage


def publish(url: str) -> None:
    figures = LiveFigures()
    shared = SharedFigures(GuardedStorage(open_storage(url), deadline=10), figures)
    parent, is_first = os.getppid(), True
    while os.getppid() == parent:
        try:
            run(shared.publishing())
        except StorageError as error:
            sys.stderr.write(f"{error}\n")
        else:
            if is_first:
                sys.stdout.write(f"{figures.run} {os.getpid()}\n")
                sys.stdout.flush()
            is_first = False
        time.sleep(0.02)


if __name__ == "__main__":
    for _ in range(int(sys.argv[2]) - 1):
        if os.fork() == 0:
            break
    publish(sys.argv[1])
