"""The process that fetches the policy of a URL, checks it, and writes the file that the supervisor looks at.

The supervisor has one thread and must not wait for a server. So the first fetch has a process of its own, too.
"""

import json
import os
import random
import select
import signal
import time
from contextlib import suppress

from ratebound.errors import RateboundError
from ratebound.policy.load.url_text import FetchError
from ratebound.policy.runtime.fetched_policy import FetchedPolicy
from ratebound.policy.runtime.policy_url import JITTER
from ratebound.service.run_folder import RunFolder


def first_fetch(policy: FetchedPolicy) -> RateboundError | None:
    """Fetch in a process of its own, and return the error if that fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _tell_result(policy, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    if told == b"{}":
        return None
    if not told:
        return FetchError("failed", f"{policy.shown}: the process that fetches the policy has died")
    return FetchError(**json.loads(told))


def _tell_result(policy: FetchedPolicy, writing: int) -> None:
    """Fetch, and write the result as JSON: {}, or the error. Does not return."""
    try:
        result = {}
        try:
            policy.attempt()
        except FetchError as error:
            result = {"kind": error.kind, "message": str(error)}
        except Exception as error:  # of any kind: the supervisor must be told
            result = {"kind": "invalid", "message": str(error)}
        with open(writing, "wb") as pipe:
            pipe.write(json.dumps(result).encode())
    finally:
        os._exit(0)


def run_policy_poller(policy: FetchedPolicy, every: float, folder: RunFolder, started: int, supervisor: int) -> None:
    """Fetch every so many seconds, and at once after SIGHUP, until the supervisor has gone. Each result is noted in the
    folder of the run; see `run_worker` for the pipes."""
    wake = os.pipe()
    for descriptor in wake:
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGHUP, _leave_to_the_pipe)
    signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    folder.note_fetch(str(policy.error or ""))
    os.write(started, b"1")
    os.close(started)
    while True:
        due = time.monotonic() + every * random.uniform(1 - JITTER, 1 + JITTER)
        readable, _, _ = select.select([wake[0], supervisor], [], [], max(0.0, due - time.monotonic()))
        if supervisor in readable:
            return
        with suppress(BlockingIOError):
            os.read(wake[0], 65536)
        policy.fetch()
        folder.note_fetch(str(policy.error or ""), is_asked=wake[0] in readable)


def _leave_to_the_pipe(number: int, frame: object) -> None:
    """Do nothing: the number of the signal is in the pipe."""
