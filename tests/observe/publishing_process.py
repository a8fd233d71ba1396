"""A process that publishes its figures again and again, until it is killed: `python -m tests.observe.publishing_process
URL`. Each line of its output is one publication."""

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
    while True:
        try:
            run(shared.publishing())
        except StorageError as error:
            sys.stderr.write(f"{error}\n")
        else:
            sys.stdout.write(f"{figures.run}\n")
            sys.stdout.flush()
        time.sleep(0.02)


if __name__ == "__main__":
    publish(sys.argv[1])
