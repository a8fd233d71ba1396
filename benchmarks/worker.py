"""The process that measures one build: runs the functions that its parent names, see builds.py."""

import os
import pickle
import sys

import ratebound
from benchmarks.builds import COMPILED


def main(build: str) -> None:
    """Run functions until the parent closes the pipe."""
    if getattr(ratebound, "compiled", False) is not (build == COMPILED):
        raise SystemExit(f"{ratebound.__file__} is not a {build} build")
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answers

    def send(*message: object) -> None:
        pickle.dump(message, answers)
        answers.flush()

    def done() -> None:
        send(False, None)
        pickle.load(requests)

    while True:
        try:
            function, arguments = pickle.load(requests)
        except EOFError:
            return
        send(True, function(*arguments, done))


if __name__ == "__main__":
    main(sys.argv[1])
