"""The storage of states in Memcached, for threads and for tasks: `memcached://host:11211`.

A decision reads the item of a key, runs the kernels on its states, and swaps the item if nobody has changed it since:
two trips. If somebody has, it decides again, until its deadline. A group over several keys is decided in rounds (see
parts.py). Instants are those of this host's clock, or of another host's that is a little ahead of it: if each host went
by its own, every turn between two hosts would look like time that has passed.
"""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Literal, NamedTuple

from ratebound.clock import SECOND, Clock, wall_clock
from ratebound.errors import InvalidLimit, StorageError
from ratebound.fork import renew_in_children
from ratebound.limit import LOG_COUNT, Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import parts
from ratebound.storage.blame import Blameless, TooLate
from ratebound.storage.memcached.address import MemcachedAddress, read_url, server_of
from ratebound.storage.memcached.connect import ABSENT, Found, ServerConnections
from ratebound.storage.memcached.item import DIGEST, item_of, states_in, swapped_at
from ratebound.storage.memcached.key_lines import KeyLines
from ratebound.storage.memcached.refusal import refusal
from ratebound.storage.stored_states import StoredGroup
from ratebound.storage.threads import Threads

FIRST_PAUSE = 0.0005  # seconds at most, after the second swap that came too late; then twice as long each time
LONGEST_PAUSE = 0.01
BATCH = 100  # groups that a thread decides at once for tasks
EARLIER = 0.05  # of the deadline: so much before it the calls of threads end, for tasks
MOST_THREADS = 2  # for the tasks that call the same servers
SKEW = SECOND  # microseconds: a clock that is further ahead is wrong, or ours was set back
CROWDED = "the processes that share this key changed it more often than this one could in time: use a larger ?timeout="
WRONG_CLOCK = (
    "the clock of this host is %.3g s behind that of another host that uses the same Memcached, or it was set back:"
    " while their clocks differ by more than a second, limits let too much pass; use NTP on all of them"
)
Answer = Sequence[Row] | StorageError

log = logging.getLogger("ratebound")


class ItemJob(NamedTuple):
    """A group of one key to decide, or states of one key to forget."""

    key: bytes  # the digest of the key
    group: StoredGroup
    mode: Mode | Literal["reset"]


class SplitJob(NamedTuple):
    """A group of several keys to decide."""

    group: Group
    mode: Mode


Job = ItemJob | SplitJob


class MemcachedStorage:
    """A storage in Memcached, on one server or several.

    Each key is on one server, and stays there also if that server is dead. It is thread-safe, and a child process may
    go on with it.

    Args:
        url: A URL like `"memcached://host:11211"`, with one server or several.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: The URL cannot be read.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.storage.memcached.storage import MemcachedStorage
        >>> storage = MemcachedStorage("memcached://localhost:11211")
        >>> limiter = Limiter("100/minute fixed-window", storage=storage)
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.address: MemcachedAddress = read_url(url)
        self.deadline = self.address.timeout  # every call has ended by then
        self._clock: Clock = clock or wall_clock
        self._has_warned = False  # of clocks that differ
        self._behind = 0  # microseconds that this host's clock is known to be behind that of another
        self._servers = [ServerConnections(one, self.address.connect_timeout) for one in self.address.servers]
        self._lines: KeyLines[ItemJob] = KeyLines()
        if len(self._servers) > 1:
            self.nodes_of = self._nodes_of
        renew_in_children(self)

    @classmethod
    def from_url(cls, url: str) -> "MemcachedStorage":
        """Open a storage by its URL.

        Args:
            url: The URL of the storage.

        Raises:
            ValueError: The URL cannot be read.
        """
        return cls(url)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        A group of several keys is decided key by key: others may see a part of it charged for a moment.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
            InvalidLimit: The storage does not keep a limit.
        """
        until = time.monotonic() + self.deadline
        return checked(self.answers([self.job(group, mode) for group in groups], until))

    def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        until = time.monotonic() + self.deadline
        checked(self.answers(self.reset_jobs(group), until))

    def refusal_of(self, limit: Limit) -> str:
        """Return why a limit is not kept here; "" if it is. Kept are rates and quotas.

        Args:
            limit: The limit to look at.
        """
        return refusal(limit)

    def close(self) -> None:
        """Close all connections. The next call opens them again."""
        for server in self._servers:
            server.close()

    def renew(self) -> None:
        """Forget connections and lines in a forked child: they are the parent's."""
        self._lines.renew()
        for server in self._servers:
            server.renew()

    def async_twin(self) -> "AsyncMemcachedStorage":
        """Return a storage for tasks over the same states, with the same connections."""
        return AsyncMemcachedStorage(shared=self)

    def job(self, group: Group, mode: Mode) -> Job:
        """Return what is to be done for a group.

        Args:
            group: The asks to decide.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            InvalidLimit: The storage does not keep a limit.
        """
        is_split, first = False, group[0][0]
        for key, limits, *_ in group:
            is_split = is_split or key != first
            for limit in limits:
                if (not limit.numbers.plain or limit.count > LOG_COUNT) and (reason := refusal(limit)):
                    raise InvalidLimit(reason)
        if is_split:
            return SplitJob(group, mode)
        stored = StoredGroup(group, self.address.names)
        return ItemJob(stored.names[0][:DIGEST], stored, mode)

    def reset_jobs(self, group: Group) -> list[Job]:
        """Return what is to be done to forget the states of a group.

        Args:
            group: The asks whose keys and limits are forgotten.
        """
        found: list[Job] = []
        for ask in group:
            if ask[1]:
                stored = StoredGroup((ask,), self.address.names)
                found.append(ItemJob(stored.names[0][:DIGEST], stored, "reset"))
        return found

    def answers(self, jobs: Sequence[Job], until: float) -> list[Answer]:
        """Return the answer to each job, as if they came one after the other; or its StorageError.

        Jobs of the same key are decided in one swap, and the items of different keys are read in one trip.

        Args:
            jobs: What the calls decide.
            until: The instant of the monotonic clock by which the call ends.
        """
        if len(jobs) == 1 and isinstance(jobs[0], ItemJob):
            return [self._alone(jobs[0], until)]
        found: list[Answer] = []
        apart: list[ItemJob] = []  # of which the order matters only among those of one key
        for job in jobs:
            if isinstance(job, ItemJob):
                apart.append(job)
                continue
            found += self._apart(apart, until)
            apart = []
            found.append(self._split(job, until))
        return found + self._apart(apart, until)

    def _alone(self, job: ItemJob, until: float) -> Answer:
        try:
            return self._decided(job.key, [job], until, None)[0]
        except StorageError as error:
            return error

    def _apart(self, jobs: Sequence[ItemJob], until: float) -> list[Answer]:
        """Return the answers to jobs of any keys, in their order."""
        by_key: dict[bytes, list[int]] = {}
        for place, job in enumerate(jobs):
            by_key.setdefault(job.key, []).append(place)
        items, failed = self._read(by_key, until) if len(by_key) > 1 else ({}, {})
        answers: list[Answer] = [()] * len(jobs)
        for key, places in by_key.items():
            decided: Sequence[Answer]
            if key in failed:
                decided = [failed[key]] * len(places)
            else:
                try:
                    decided = self._decided(key, [jobs[place] for place in places], until, items.get(key))
                except StorageError as error:
                    decided = [error] * len(places)
            for place, answer in zip(places, decided, strict=True):
                answers[place] = answer
        return answers

    def _split(self, job: SplitJob, until: float) -> Answer:
        """Return the answer to a group of several keys."""
        rounds = parts.decide(job.group, job.mode, str)  # every key is a part
        items: dict[bytes, Found] = {}  # those that the peeks have read, for the swaps
        try:
            calls = next(rounds)
            while True:
                try:
                    rows = self._round(calls, items, until)
                except StorageError as error:
                    calls = rounds.throw(error)
                else:
                    calls = rounds.send(rows)
        except StopIteration as done:
            answer: Sequence[Row] = done.value
            return answer
        except StorageError as error:
            return error

    def _round(self, calls: Sequence[parts.Call], items: dict[bytes, Found], until: float) -> list[Sequence[Row]]:
        jobs = [self.job(group, mode) for group, mode in calls]
        if len(jobs) > 1:
            read, failed = self._read([job.key for job in jobs if isinstance(job, ItemJob)], until)
            for error in failed.values():
                raise error
            items.update(read)
        rows: list[Sequence[Row]] = []
        for job in jobs:
            assert isinstance(job, ItemJob)
            item = items.get(job.key) if job.mode == "peek" else items.pop(job.key, None)
            try:
                (answer,) = self._decided(job.key, [job], until, item)
                if isinstance(answer, StorageError):
                    raise answer
            except StorageError as error:
                error.undone = error.undone and (job.mode == "peek" or not rows)
                raise
            rows.append(answer)
        return rows

    def _read(self, keys: Iterable[bytes], until: float) -> tuple[dict[bytes, Found], dict[bytes, StorageError]]:
        """Return the items of keys, in one trip to each server, and the errors of those whose server failed."""
        by_server: dict[int, dict[bytes, bytes]] = {}
        for key in keys:
            place = server_of(self.address.servers, key)
            by_server.setdefault(place, {})[self._name(key)] = key
        items: dict[bytes, Found] = {}
        failed: dict[bytes, StorageError] = {}
        for place, names in by_server.items():
            try:
                found = self._servers[place].read(list(names), until)
            except StorageError as error:
                failed |= dict.fromkeys(names.values(), error)
            else:
                items |= {key: found.get(name, ABSENT) for name, key in names.items()}
        return items, failed

    def _decided(self, key: bytes, jobs: list[ItemJob], until: float, item: Found | None) -> Sequence[Answer]:
        """Return the answers to jobs of one key. `item` is its item if it was just read. Raises StorageError."""
        server, name = self._servers[server_of(self.address.servers, key)], self._name(key)
        if all(job.mode == "peek" for job in jobs):
            if item is None:
                item = server.read([name], until).get(name, ABSENT)
            answers, is_repaired = _answers(jobs, states_in(item.data, key), self._now(item.data))
            if not is_repaired:  # else the clock has stepped back
                return answers
        return self._lines.run(name, jobs, until, partial(self._swapped, server, key, name, item))

    def _swapped(
        self, server: ServerConnections, key: bytes, name: bytes, item: Found | None, jobs: list[ItemJob], until: float
    ) -> Sequence[Answer]:
        """Decide jobs of one key in one swap of its item. Raises StorageError."""
        tries = 0
        while True:
            if item is None:
                try:
                    item = server.read([name], until).get(name, ABSENT)
                except TooLate as error:
                    if tries:  # the server has answered until now: the swaps took the time
                        raise StorageError(CROWDED, undone=True, outage=False) from error
                    raise
            states = states_in(item.data, key)
            now = self._now(item.data)
            answers, is_changed = _answers(jobs, states, now)
            if not is_changed:
                return answers
            data, seconds = item_of(states, now)
            if item is ABSENT:
                is_written = server.add(name, data, seconds, until)
            else:
                is_written = server.swap(name, data, seconds, item.token, until)
            if is_written:
                return answers
            item = None  # somebody else has changed it
            tries += 1
            self._pause(tries, until)

    def _now(self, data: bytes) -> int:
        """Return the instant at which an item is decided. From now on a clock that is a little ahead is ours, too."""
        clock = self._clock()
        behind = swapped_at(data) - clock
        if self._behind < behind <= SKEW:
            self._behind = behind
        elif behind > SKEW and not self._has_warned:
            self._has_warned = True
            log.warning(WRONG_CLOCK, behind / SECOND)
        return clock + self._behind

    def _pause(self, tries: int, until: float) -> None:
        """Let the others finish, for a time that differs from theirs. Raises StorageError if the time is up."""
        rest = until - time.monotonic()
        if rest <= 0:
            raise StorageError(CROWDED, undone=True, outage=False)
        if tries > 1:
            longest = min(FIRST_PAUSE * 2.0 ** min(tries - 2, 10), LONGEST_PAUSE)
            time.sleep(min(random.random() * longest, rest))

    def _name(self, key: bytes) -> bytes:
        return self.address.prefix + key.hex().encode()

    def _nodes_of(self, group: Group) -> tuple[str, ...]:
        """Return the servers that keep the keys of a group."""
        names = self.address.names
        return tuple(sorted({self.node_of(names.of_key(key)) for key, *_ in group}))

    def node_of(self, key: bytes) -> str:
        """Return the server that keeps a key, by the digest of the key.

        Args:
            key: A key.
        """
        return self._servers[server_of(self.address.servers, key)].name


class AsyncMemcachedStorage:
    """A storage for tasks: the names of `MemcachedStorage`, with await. It is over the states of `shared`, if given.

    pymemcache blocks, so threads call it. Calls that wait for a thread are decided together: those of one key in one
    swap, and the items of different keys are read in one trip.

    Args:
        url: A URL like `"memcached://host:11211"`, with one server or several.
        shared: The storage for threads whose states are shared. None means one of its own, from the other arguments.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: The URL cannot be read.

    Examples:
        >>> from ratebound import AsyncLimiter
        >>> from ratebound.storage.memcached.storage import AsyncMemcachedStorage
        >>> storage = AsyncMemcachedStorage("memcached://localhost:11211")
        >>> limiter = AsyncLimiter("100/minute fixed-window", storage=storage)
    """

    def __init__(self, url: str = "", *, shared: MemcachedStorage | None = None, clock: Clock | None = None) -> None:
        self.shared = MemcachedStorage(url, clock=clock) if shared is None else shared
        self.address: MemcachedAddress = self.shared.address
        self.deadline = self.shared.deadline
        if hasattr(self.shared, "nodes_of"):
            self.nodes_of = self.shared.nodes_of
        self._threads = Threads()
        self.renew()
        renew_in_children(self)

    @classmethod
    def from_url(cls, url: str) -> "AsyncMemcachedStorage":
        """Open a storage by its URL; see `MemcachedStorage.from_url`.

        Args:
            url: The URL of the storage.

        Raises:
            ValueError: The URL cannot be read.
        """
        return cls(url)

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order; see `MemcachedStorage.evaluate`.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
            InvalidLimit: The storage does not keep a limit.
        """
        return checked(await self._answers([self.shared.job(group, mode) for group in groups]))

    async def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits; see `MemcachedStorage.reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        checked(await self._answers(self.shared.reset_jobs(group)))

    def refusal_of(self, limit: Limit) -> str:
        """Return why a limit is not kept here; "" if it is.

        Args:
            limit: The limit to look at.
        """
        return refusal(limit)

    async def close(self) -> None:
        """Close all connections. The next call opens them again."""
        self.shared.close()
        self._threads.close()

    def renew(self) -> None:
        """Forget calls and threads in a forked child: they are the parent's."""
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, ...], _ThreadLine] = {}

    async def _answers(self, jobs: list[Job]) -> list[Answer]:
        if not jobs:
            return []
        call = _TaskCall(jobs, asyncio.get_running_loop(), self.deadline)
        nodes = self._nodes(jobs)
        with self._lock:
            line = self._lines.setdefault(nodes, _ThreadLine())
            line.waiting.append(call)
            starts = len(line.serving) < MOST_THREADS
            one = object()
            if starts:
                line.serving.add(one)
        try:
            if starts:
                self._start(nodes, line, one)
            return await call.future
        finally:
            call.leave()

    def _start(self, nodes: tuple[str, ...], line: "_ThreadLine", one: object) -> None:
        """Start a thread that serves a line."""
        replies = None
        try:
            replies = self._threads.start(partial(self._work, nodes, line, one))
        finally:
            if replies is None:  # the system allows no more threads, or a signal handler raised
                self._not_started(line, one)

    def _nodes(self, jobs: list[Job]) -> tuple[str, ...]:
        """Return the servers of a call. Calls of other servers do not wait for it: one that is dead delays no other."""
        if len(self.shared.address.servers) == 1:
            return ("",)
        keys: set[bytes] = set()
        for job in jobs:
            if isinstance(job, ItemJob):
                keys.add(job.key)
            else:
                keys |= {self.shared.address.names.of_key(key) for key, *_ in job.group}
        return tuple(sorted({self.shared.node_of(key) for key in keys}))

    def _not_started(self, line: "_ThreadLine", one: object) -> None:
        """Refuse the calls of a line that no thread serves."""
        with self._lock:
            line.serving.discard(one)
            calls: list[_TaskCall] = []
            if not line.serving:
                calls, line.waiting = line.waiting, []
        for call in calls:
            error = StorageError("the operating system allows no more threads to call Memcached", undone=True)
            call.answer([error] * len(call.jobs))

    def _work(self, nodes: tuple[str, ...], line: "_ThreadLine", one: object) -> None:
        """Decide what waits in a line until it is empty. Runs in a thread."""
        while True:
            with self._lock:
                calls, count = [], 0
                while line.waiting and count < BATCH:
                    call = line.waiting.pop(0)
                    if call.begin():
                        calls.append(call)
                        count += len(call.jobs)
                if not calls:
                    line.serving.discard(one)
                    if not line.serving and self._lines.get(nodes) is line:
                        del self._lines[nodes]
                    return
            self._answer(calls)

    def _answer(self, calls: "Sequence[_TaskCall]") -> None:
        answers: list[Answer]
        jobs = [job for call in calls for job in call.jobs]
        try:
            # A little before the callers' own time is up, so that they learn what has failed. One whose time is up
            # earlier does not wait for it.
            until = max(call.until for call in calls) - EARLIER * self.deadline
            answers = self.shared.answers(jobs, until)
        except BaseException as error:
            failed = StorageError(f"the call of Memcached failed ({type(error).__name__}: {error})")
            failed.__cause__ = error
            answers = [failed] * len(jobs)
        place = 0
        for call in calls:
            call.answer(answers[place : place + len(call.jobs)])
            place += len(call.jobs)


class _ThreadLine:
    """The calls of tasks that wait for a thread, and a token for each thread that serves them."""

    __slots__ = ("serving", "waiting")

    def __init__(self) -> None:
        self.serving: set[object] = set()
        self.waiting: list[_TaskCall] = []


class _TaskCall:
    """A call of a task, which a thread answers. At its deadline it is answered with what is known by then."""

    __slots__ = ("_answers", "_began", "_lock", "_loop", "_timer", "future", "jobs", "until")

    def __init__(self, jobs: list[Job], loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.jobs = jobs
        self.until = time.monotonic() + deadline
        self.future: asyncio.Future[list[Answer]] = loop.create_future()
        self._loop = loop
        self._lock = threading.Lock()
        self._began = False
        self._answers: list[Answer] | None = None
        self._timer = loop.call_later(deadline, self._end)

    def begin(self) -> bool:
        """Return True if the call is to be made now, False if its caller has gone."""
        with self._lock:
            self._began = self._answers is None
            return self._began

    def answer(self, answers: list[Answer]) -> None:
        """Answer the call. Any thread may do so."""
        with self._lock:
            if self._answers is None:
                self._answers = answers
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._tell)

    def leave(self) -> None:
        """Withdraw the call, if no thread has begun it. Runs in the task."""
        self._timer.cancel()
        with self._lock:
            if self._answers is None:
                self._answers = []

    def _end(self) -> None:
        with self._lock:
            if self._answers is None:
                error = (
                    TooLate("Memcached did not answer in time; it is unknown whether it decided")
                    if self._began
                    else Blameless("there are more calls than Memcached answers in time", undone=True)
                )
                self._answers = [error] * len(self.jobs)
        self._tell()

    def _tell(self) -> None:
        if not self.future.done() and self._answers is not None:
            self.future.set_result(self._answers)


def checked(answers: list[Answer]) -> list[Sequence[Row]]:
    """Return the rows of a call. Raises the first StorageError among them, with all answers."""
    rows: list[Sequence[Row]] = []
    failed: list[StorageError] = []
    for answer in answers:
        if isinstance(answer, StorageError):
            failed.append(answer)
        else:
            rows.append(answer)
    if not failed:
        return rows
    error = copy(failed[0])  # several callers may have it
    error.__cause__ = failed[0].__cause__
    if len(answers) > 1:
        error.undone = not rows and all(one.undone for one in failed)
        error.answers = answers
    raise error


def _answers(jobs: Sequence[ItemJob], states: dict[bytes, bytes], now: int) -> tuple[list[Answer], bool]:
    """Decide jobs of one item, one after the other, and change its states. Return answers, and True if any changed.

    A state that cannot be read fails the job that needs it, and no other.
    """
    answers: list[Answer] = []
    is_changed = False
    for _, group, mode in jobs:
        if mode == "reset":
            for name in group.names:
                is_changed = states.pop(name, None) is not None or is_changed
            answers.append(())
            continue
        try:
            rows, changes = group.decide(states, mode, now)
        except StorageError as error:
            answers.append(error)
            continue
        for name, data, _ in changes:
            is_changed = True
            if data:
                states[name] = data
            else:
                states.pop(name, None)
        answers.append(rows)
    return answers, is_changed
