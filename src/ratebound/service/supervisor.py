"""The supervisor: it binds the sockets, starts the workers and the control plane, and watches them.

Processes are forked, not spawned. They inherit sockets, secrets and the policy in force in memory, so that no secret is
in a file, an option or the environment of a worker, and a worker that replaces another one starts in milliseconds, also
if the policy file is broken by then. The supervisor has one thread, no event loop and no connection to a storage, so
there is nothing that a fork could break.
"""

import logging
import math
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ratebound.admin.policy_source import described
from ratebound.errors import RateboundError
from ratebound.policy import Policy, PolicyFile, read_policy
from ratebound.policy.runtime.fetched_policy import FetchedPolicy
from ratebound.policy.runtime.kept_limits import KeptLimits
from ratebound.service.admin import AdminTask, run_admin
from ratebound.service.listening import StartError, address_of, bind_all, close_all, tls_context
from ratebound.service.logs import set_up_logs
from ratebound.service.policy_poller import first_fetch, run_policy_poller
from ratebound.service.run_folder import RunFolder, digest_of, make_run_folder
from ratebound.service.settings import ServiceSettings
from ratebound.service.worker import LEDGER_WITHIN, WorkerTask, run_worker
from ratebound.service.worker_operations import RELOAD
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.urls import check_storage_is_installed, refusals_by_url

log = logging.getLogger("ratebound.service")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, RELOAD, signal.SIGCHLD)
FIRST_PAUSE = 0.1  # seconds before a process that died is started again; doubled each time
LONGEST_PAUSE = 5.0
STEADY = 10.0  # seconds after which a process that died is started again as if it were the first time
MOST_STARTS = 6  # of one process in a row that do not come up
AFTER_GRACE = 2.0  # seconds for a process to end by itself after its grace
POLLER = "policy"  # the process that fetches the policy
LOOK_AT_COPY = 0.5  # seconds between two looks at the file that it writes
WITHOUT_POLICY = {"rules": [{"name": "everything", "default": True, "limits": "unlimited"}]}


@dataclass(slots=True, eq=False)
class _Child:
    """A process that the supervisor keeps running."""

    name: str
    run: Callable[[int, int], None]  # takes the pipes `started` and `supervisor` of `run_worker`
    pid: int = 0  # 0: it does not run
    started: int = -1  # the pipe on which it says that it serves
    is_up: bool = False
    was_up: bool = False
    starts: int = 0  # in all
    failures: int = 0  # in a row
    since: float = 0.0
    due: float = 0.0  # when to start it


class Supervisor:
    """A run of the service. Raises StartError and PolicyError if it cannot start.

    `tell` shows the link to the dashboard to the person who has started it. The link has a token if this run made one.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self._tell = tell
        self.policy: Policy | PolicyFile
        self._fetched: FetchedPolicy | None = None  # of a URL
        self._warnings: list[str] = []  # for the log, once there is one
        self._asked = 0  # fetches that a signal has asked for, and that are done
        if settings.policy is None:
            self.policy = read_policy(WITHOUT_POLICY)
        else:
            if settings.policy_url:
                fetched = FetchedPolicy(settings.policy_url, settings.policy, functions=functions)
                self._fetch_first(fetched)
                functions = fetched.functions
            self.policy = PolicyFile(settings.policy, functions=functions, every=0)
        try:
            check_storage_is_installed(settings.storage or self.policy_now.storage)
            if settings.ledger is not None:
                check_storage_is_installed(settings.ledger.url)
        except ModuleNotFoundError as error:
            raise StartError(str(error)) from None
        self._kept = KeptLimits(refusals_by_url(settings.storage or self.policy_now.storage))
        if isinstance(self.policy, PolicyFile):
            self._kept.check(self.policy.compiled)
            self.policy.checks.add(self._kept.check)
        for name in settings.listens:
            tls_context(settings, name)
        self.sockets = bind_all(settings.listens)
        try:
            self.folder: RunFolder = make_run_folder()
        except StartError:
            close_all(self.sockets)
            raise
        try:
            self._keep_policy()
            self.storage = self._storage()
        except StartError:
            close_all(self.sockets)
            self.folder.remove()
            raise
        self.secrets = settings.secrets or (secrets.token_bytes(32),)
        # Made here, so that it is the same for a control plane that is started again
        self.run_token = "" if settings.admin_tokens else secrets.token_urlsafe(24)
        self._reloads = 0
        self._pid = os.getpid()
        self._children: list[_Child] = []
        self._alive: tuple[int, int] = os.pipe()
        self._signals: tuple[int, int] = os.pipe()
        self._stopping: int | None = None  # the signal that began the stop
        self._failed = False
        self._announced = False
        self._next_look = 0.0
        self._has_terminal = _has_terminal()

    def run(self) -> int:
        """Serve until a signal says otherwise. Return the exit status."""
        settings = self.settings
        set_up_logs("supervisor", settings.log_level, settings.log_format)
        self._log_start()
        for descriptor in self._signals:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, _leave_to_the_pipe)
        for slot in range(settings.workers):
            self._children.append(_Child(f"worker {slot}", self._worker(slot)))
        if "admin" in self.sockets:
            self._children.append(_Child("admin", self._admin))
        if self._fetched is not None:
            self._children.append(_Child(POLLER, self._poller))
        try:
            for child in self._children:
                self._start(child)
            return self._watch()
        finally:
            for child in self._children:
                if child.pid:
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
                    with suppress(ChildProcessError):
                        os.waitpid(child.pid, 0)
            close_all(self.sockets)
            self.folder.remove()
            for number in SIGNALS:  # one that comes now must not change the exit status
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)

    # What is served

    def _storage(self) -> str:
        """Return the URL of the storage. Several workers without a shared one get a zone of this run."""
        chosen = self.settings.storage or self.policy_now.storage
        if self.settings.workers > 1 and split_url(chosen).scheme == "memory":
            return f"shm://{self.folder.own_zone()}"
        return chosen

    @property
    def policy_now(self) -> Policy:
        """The policy in force."""
        return self.policy.policy if isinstance(self.policy, PolicyFile) else self.policy

    @property
    def dashboard(self) -> str:
        """The link to the dashboard; empty if there is none that a browser can open.

        A token of this run stands in the fragment, which browsers send to no server.
        """
        bound = self.sockets.get("admin")
        if bound is None or bound.family == socket.AF_UNIX:
            return ""
        url = address_of("admin", bound, tls=bool(self.settings.tls_cert))
        return f"{url}/#token={self.run_token}" if self.run_token else f"{url}/"

    def _fetch_first(self, fetched: FetchedPolicy) -> None:
        """Fetch the policy, or use the copy of the last good one. Raises FetchError if there is none."""
        self._fetched = fetched
        error = first_fetch(fetched)
        self._warnings = [fetched.risk] if fetched.risk else []
        if error is not None:
            self._warnings.append(fetched.use_copy(error))

    def _log_start(self) -> None:
        for warning in self._warnings:
            log.warning(warning)
        if self.settings.policy is None:
            log.warning("there is no policy: described requests are unlimited. Set --policy FILE")
        if not self.settings.secrets:
            log.info(
                "reservations are signed with a secret of this run: they end with it, and no other instance knows"
                " them. Set RATEBOUND_SECRET or --secret-file"
            )
        log.info("states are kept in %s", hidden(self.storage)[1:-1])
        if self.settings.ledger is not None:
            log.info("usage is recorded in %s", hidden(self.settings.ledger.url)[1:-1])

    def _worker(self, slot: int) -> Callable[[int, int], None]:
        def run(started: int, supervisor: int) -> None:
            child = self._children[slot]
            task = WorkerTask(
                self.settings,
                self.policy,
                self.storage,
                self.secrets,
                self.sockets,
                self.folder,
                slot,
                child.starts - 1,
                self._pid,
                self._fetched,
            )
            run_worker(task, started, supervisor)

        return run

    def _admin(self, started: int, supervisor: int) -> None:
        for name, bound in self.sockets.items():
            if name != "admin":
                bound.close()
        task = AdminTask(self.settings, self.folder, self.sockets["admin"], self.secrets[0], self.run_token)
        run_admin(task, started, supervisor)

    def _poller(self, started: int, supervisor: int) -> None:
        close_all(self.sockets)
        assert self._fetched is not None
        run_policy_poller(self._fetched, self.settings.policy_every, self.folder, started, supervisor)

    # Processes

    def _start(self, child: _Child) -> None:
        """Fork a process. Signals wait until the child has its own handlers: else the parent's would swallow them."""
        child.since = time.monotonic()
        child.is_up = False
        with suppress(OSError):  # the reader of the log has gone, or its disk is full: no reason to serve less
            sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pipe: tuple[int, ...] = ()
        try:
            pipe = os.pipe()
            child.starts += 1
            pid = os.fork()
            if pid == 0:
                os.close(pipe[0])
                self._run_child(child, pipe[1])
            child.pid, child.started = pid, pipe[0]
            os.close(pipe[1])
        except OSError as error:  # too many processes or files, or no memory
            for descriptor in pipe:
                os.close(descriptor)
            child.due = child.since + LONGEST_PAUSE
            log.error("%s cannot be started now: %s", child.name, error.strerror or error)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _run_child(self, child: _Child, started: int) -> None:
        """Run a child's part in the forked process. Does not return."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            for descriptor in (*self._signals, self._alive[1]):
                os.close(descriptor)
            for other in self._children:
                if other.started >= 0:
                    os.close(other.started)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
            set_up_logs(child.name, self.settings.log_level, self.settings.log_format)
            child.run(started, self._alive[0])
            status = 0
        except KeyboardInterrupt:
            status = 130
        except RateboundError as error:
            log.error("cannot serve: %s", error)
        except BaseException:
            log.exception("failed")
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(status)  # atexit and the rest are the supervisor's

    def _watch(self) -> int:
        while True:
            self._reap()
            if self._stopping is not None or self._failed:
                return self._stop()
            now = time.monotonic()
            for child in self._children:
                if not child.pid and child.due <= now:
                    self._start(child)
            self._announce()
            self._look_at_policy(now)
            self._wait(0.5)

    def _wait(self, seconds: float) -> None:
        """Wait for a signal, a first sign of life, or the time when a start is due; note what has come."""
        now = time.monotonic()
        if self._stopping is None and not self._failed:
            seconds = min([seconds, *(child.due - now for child in self._children if not child.pid)])
        descriptors = [child.started for child in self._children if child.started >= 0]
        readable, _, _ = select.select([self._signals[0], *descriptors], [], [], max(0.0, seconds))
        for child in self._children:
            if child.started in readable:
                child.is_up = bool(os.read(child.started, 1))
                child.was_up = child.was_up or child.is_up
                os.close(child.started)
                child.started = -1
        if self._signals[0] in readable:
            received = os.read(self._signals[0], 65536)
            for number in received:
                if number in (signal.SIGTERM, signal.SIGINT):
                    if self._stopping is not None:
                        log.warning("stopped at once by a second signal")
                        raise SystemExit(128 + number)
                    self._stopping = number
            if signal.SIGHUP in received and self._has_terminal and not _has_terminal() and self._stopping is None:
                self._stopping = signal.SIGHUP  # its window was closed: nobody could stop it with Ctrl-C any more
            if (signal.SIGHUP in received or RELOAD in received) and self._stopping is None:
                self._reload_or_fetch()  # once, however many there were

    def _reap(self) -> None:
        """Take note of processes that have ended, and of when they are started again."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        child.pid = 0
        if child.started >= 0:
            child.is_up = bool(os.read(child.started, 1))
            os.close(child.started)
            child.started = -1
        now = time.monotonic()
        if self._stopping is not None or self._failed:
            return
        child.failures = 0 if child.is_up and now - child.since > STEADY else child.failures + 1
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        if not child.is_up and (not child.was_up or child.failures >= MOST_STARTS):
            log.error("%s %s and cannot be started: the service stops", child.name, how)
            self._failed = True
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (child.failures - 1)) if child.failures > 1 else 0.0
        child.due = now + pause
        log.error("%s %s; it is started again%s", child.name, how, f" in {pause:g} s" if pause else "")

    def _announce(self) -> None:
        """Say once that everything is up, and where."""
        if self._announced or not all(child.is_up for child in self._children):
            return
        self._announced = True
        for name, bound in self.sockets.items():
            log.info("%s is served on %s", name, address_of(name, bound, tls=bool(self.settings.tls_cert)))
        log.info("ready, with %d worker%s", self.settings.workers, "" if self.settings.workers == 1 else "s")
        if self._tell is not None and self.dashboard:
            self._tell(f"The dashboard: {self.dashboard}")
        if self._tell is None and self.run_token and "admin" in self.sockets:
            log.info(
                "no admin tokens are set, so nobody can sign in to the dashboard: start on a terminal, which shows a"
                " link, or set RATEBOUND_ADMIN_TOKENS or --admin-token-file"
            )

    # Signals

    def _reload_or_fetch(self) -> None:
        """Read the policy file, or have the policy of a URL fetched now."""
        if self._fetched is None:
            self._reload()
        for child in self._children:
            if child.name == POLLER and child.pid:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGHUP)

    def _reload(self) -> None:
        """Read the policy file. If it can be used, tell the workers; else the old policy stays in force everywhere."""
        if isinstance(self.policy, PolicyFile):
            before = self.policy.compiled, self.policy.text
            problem = ""
            is_used = self.policy.reload()
            if is_used:
                try:
                    self._keep_policy()
                    self._send(signal.SIGHUP)
                except StartError as error:
                    self.policy.compiled, self.policy.text = before
                    is_used = False
                    problem = str(error)
                    log.error("%s; the old policy stays in force", error)
            self.folder.note_old_policy(not is_used)
            self._note_reload(before[0].policy, problem)

    def _note_reload(self, before: Policy, problem: str) -> None:
        """Note what a reload has led to, for the operator who may have asked for it."""
        assert isinstance(self.policy, PolicyFile)
        error = self.policy.error
        problems = [] if error is None else error.problems
        problem = problem or str(error or "")
        self._reloads += 1
        self.folder.note_reload(
            {
                "number": self._reloads,
                "problem": problem,
                "problems": problems,
                "changes": [] if problem else described(before, self.policy.policy),
                "digest": digest_of(self.policy.text),
            }
        )

    def _keep_policy(self) -> None:
        """Keep the text of the policy for the workers: the file may change before they read it. Raises StartError."""
        if isinstance(self.policy, PolicyFile):
            try:
                self.folder.keep_policy(self.policy.path.suffix, self.policy.text)
            except OSError as error:
                raise StartError(f"cannot write into {self.folder.path}: {error.strerror or error}") from None

    def _look_at_policy(self, now: float) -> None:
        every = LOOK_AT_COPY if self._fetched is not None else self.settings.reload
        if every and now >= self._next_look and isinstance(self.policy, PolicyFile):
            self._next_look = now + every
            fetch = self.folder.last_fetch if self._fetched is not None else {}
            is_asked, self._asked = fetch.get("asked", 0) != self._asked, fetch.get("asked", 0)
            if is_asked and fetch.get("problem"):
                self._note_reload(self.policy_now, fetch["problem"])
            elif is_asked or self.policy.is_changed():
                self._reload()

    def _send(self, number: int) -> None:
        for child in self._children:
            if child.pid and (number != signal.SIGHUP or child.name.startswith("worker")):
                with suppress(ProcessLookupError):
                    os.kill(child.pid, number)

    def _stop(self) -> int:
        """Let all processes finish, for up to `grace` seconds. Return the exit status."""
        if not self._failed:
            log.info("stopping: accepted requests have %g s", self.settings.grace)
        close_all(self.sockets)  # nobody is left waiting in a queue that is never served
        self._send(signal.SIGTERM)
        ends = time.monotonic() + self.settings.grace + AFTER_GRACE
        if self.settings.ledger is not None:
            ends += LEDGER_WITHIN
        while any(child.pid for child in self._children):
            if time.monotonic() > ends:
                left = ", ".join(child.name for child in self._children if child.pid)
                log.error("%s did not stop in time: killed", left)
                self._send(signal.SIGKILL)
                ends = math.inf
            self._wait(0.5)
            self._reap()
        log.info("stopped")
        return 1 if self._failed else 0


def _has_terminal() -> bool:
    """Return True if a terminal is open that this process reads from or writes to."""
    return any(os.isatty(descriptor) for descriptor in (0, 1, 2))


def _leave_to_the_pipe(number: int, frame: object) -> None:
    """Do nothing: the number of the signal is in the pipe."""
