"""One pass over a log: every entry is decided and counted. Compiled where that can be done: this loop runs for each
line."""

from collections.abc import Collection
from typing import Any, Final, cast

from ratebound.http.prefix import parse_address, prefix_key
from ratebound.ledger.endpoint import MOST_ENDPOINTS
from ratebound.replay.client_peaks import PeakTable
from ratebound.replay.engine import PolicyRun, RuleSet, Visitor
from ratebound.replay.entry import Entry
from ratebound.replay.outcome_counts import (
    MOST_CLIENTS,
    ClientTable,
    EndpointCounts,
    TimeBucket,
    Timeline,
)
from ratebound.replay.path_shapes import ZEROS, PathShapes

MOST_TARGETS: Final = 20_000  # paths whose rules and endpoint are remembered
LONGEST_PATH: Final = 256  # characters of a path that is remembered
LONGEST_WHO: Final = 256  # characters of an address and a user that are remembered
OTHER: Final = "other"


class Target:
    """The endpoint of a path, and the rules that apply to it."""

    __slots__ = ("endpoint", "rules", "rules_before")

    def __init__(self, endpoint: EndpointCounts, rules: RuleSet | None, rules_before: RuleSet | None) -> None:
        self.endpoint = endpoint
        self.rules = rules
        self.rules_before = rules_before


class LogReplay:
    """The counts of a log, and the decisions of up to two policies: `run`, and `before`, with which it is compared.

    `peaks` gathers what limits can be suggested from. `statuses` are those of denied requests, as the log has them.
    With `skip_refused`, requests that were answered 429 are left out.
    """

    __slots__ = (
        "_bucket",
        "_bucket_end",
        "_by_address",
        "_by_name",
        "_by_user",
        "_ipv6",
        "_is_by_user_alone",
        "_most_targets",
        "_prefixes",
        "_remembered",
        "_shaped",
        "_shapes",
        "_skip_refused",
        "_targets",
        "_with_hosts",
        "before",
        "clients",
        "denied",
        "denied_before",
        "empty",
        "first",
        "freed",
        "hosts",
        "last",
        "newly_denied",
        "peaks",
        "refused",
        "requests",
        "run",
        "shadow_denied",
        "statuses",
        "timeline",
        "users",
    )

    def __init__(
        self,
        run: PolicyRun | None = None,
        before: PolicyRun | None = None,
        *,
        peaks: PeakTable | None = None,
        skip_refused: bool = False,
        most_clients: int = MOST_CLIENTS,
        most_targets: int = MOST_TARGETS,
    ) -> None:
        self.run = run
        self.before = before
        self.peaks = peaks
        self.requests = 0
        self.denied = 0
        self.denied_before = 0
        self.newly_denied = 0
        self.freed = 0
        self.shadow_denied = 0
        self.refused = 0  # answered 429 in the log
        self.empty = 0  # lines without a request
        self.users = 0  # entries that have a user
        self.hosts = 0  # entries that have a host, if a policy looks at hosts
        self.first = -1
        self.last = -1
        self.statuses: dict[int, int] = {}
        self.clients = ClientTable(most_clients)
        self.timeline = Timeline()
        self._skip_refused = skip_refused
        self._targets: dict[str, dict[bytes, Target]] = {}  # by method, and by path with zeros for digits
        self._remembered = 0
        self._most_targets = most_targets
        self._shaped: dict[str, Target] = {}
        self._shapes = PathShapes([one.policy for one in (run, before) if one is not None])
        self._by_address: dict[str, Visitor] = {}  # without a user
        self._by_user: dict[str, Visitor] = {}
        self._is_by_user_alone = all(one.is_by_user_alone for one in (run, before) if one is not None)
        self._prefixes: dict[str, str] = {}
        self._ipv6 = 64 if run is None else run.policy.ipv6
        self._by_name: dict[str, EndpointCounts] = {}
        self._with_hosts = any(
            rule.match.hosts for one in (run, before) if one is not None for rule in one.policy.rules
        ) or any(match.hosts for one in (run, before) if one is not None for match in one.policy.exempt)
        self._bucket = TimeBucket(0)
        self._bucket_end = -(1 << 62)

    def feed(self, entries: list[Entry], times: list[int]) -> None:
        """Decide and count entries, each at its time. Times must not step back."""
        run, before, peaks = self.run, self.before, self.peaks
        clients, targets, with_hosts = self.clients, self._targets, self._with_hosts
        by_address, by_user, is_by_user_alone = self._by_address, self._by_user, self._is_by_user_alone
        if not entries:
            return
        for one in (run, before):
            if one is not None:
                one.note_pace(times[-1] - times[0], len(times))
                if one.known >= one.most_known:
                    self._forget_visitors()
        for place in range(len(entries)):
            entry = entries[place]
            row = cast(tuple[Any, ...], entry)  # the compiler reads a plain tuple faster
            at = times[place]
            method: str = row[2]
            if not method:
                self.empty += 1
                continue
            status: int = row[4]
            is_refused = 400 < status < 430 and status in (401, 403, 404, 429)
            if status == 429:
                self.refused += 1
                if self._skip_refused:
                    continue
            address: str = row[1]
            target: str = row[3]
            user: str = row[6]
            path = target[: target.find("?")] if "?" in target else target
            zeroed = path.encode("utf-8", "surrogatepass").translate(ZEROS)
            if with_hosts:
                host: str = row[5]
                # The length in front: no host and path can be taken for others.
                zeroed = b"%d %s%s" % (len(host), host.encode("utf-8", "surrogatepass"), zeroed)
                if host:
                    self.hosts += 1
            by_path = targets.get(method)
            found = None if by_path is None else by_path.get(zeroed)
            if found is None:
                found = self._target(zeroed, entry, path)
            if user:
                self.users += 1
                # The length in front: no address and user can be taken for others.
                visitor = by_user.get(user if is_by_user_alone else f"{len(address)} {address}{user}")
            else:
                visitor = by_address.get(address)
            if visitor is None:
                visitor = self._new_visitor(address, user)
            elif visitor.dropped != clients.dropped:
                visitor.client = clients.take(visitor.client.name)
                visitor.dropped = clients.dropped
            client = visitor.client
            if at >= self._bucket_end:
                self._bucket = self.timeline.bucket(at)
                self._bucket_end = self._bucket.start + self.timeline.width
            bucket, endpoint = self._bucket, found.endpoint
            if not self.requests:
                self.first = at
            self.requests += 1
            client.requests += 1
            endpoint.requests += 1
            bucket.requests += 1
            self.last = at
            if is_refused:
                client.refused += 1
            if peaks is not None:
                peaks.add(client.name, endpoint.name, at)
            if run is None:
                continue
            is_allowed = run.decide(found.rules, at, visitor, entry, path)
            if run.shadow_denied:
                self.shadow_denied += 1
                client.shadow_denied += 1
                endpoint.shadow_denied += 1
                bucket.shadow_denied += 1
            if is_allowed:
                client.is_denied = False
            else:
                if not client.denied:
                    clients.note_denied(client.name)
                client.deny(at)
                self.denied += 1
                endpoint.denied += 1
                bucket.denied += 1
                self.statuses[status] = self.statuses.get(status, 0) + 1
            if before is None:
                continue
            was_allowed = before.decide(found.rules_before, at, visitor, entry, path)
            if not was_allowed:
                self.denied_before += 1
                client.denied_before += 1
                endpoint.denied_before += 1
                bucket.denied_before += 1
                if is_allowed:
                    self.freed += 1
                    client.freed += 1
            elif not is_allowed:
                self.newly_denied += 1
                client.newly_denied += 1

    def _new_visitor(self, address: str, user: str) -> Visitor:
        name = f"user:{user}" if user else address if ":" not in address else self._ipv6_name(address)
        client = self.clients.take(name)
        made = Visitor(client, self.clients.dropped)
        if len(address) + len(user) <= LONGEST_WHO:
            if len(self._by_address) + len(self._by_user) >= self.clients.most:
                self._forget_visitors()
            if not user:
                self._by_address[address] = made
            elif self._is_by_user_alone:
                self._by_user[user] = made
            else:
                self._by_user[f"{len(address)} {address}{user}"] = made
        return made

    def _forget_visitors(self) -> None:
        self._by_address.clear()
        self._by_user.clear()
        for run in (self.run, self.before):
            if run is not None:
                run.known = 0

    def _ipv6_name(self, address: str) -> str:
        """Return the prefix by which the engine counts an IPv6 address."""
        found = self._prefixes.get(address)
        if found is None:
            ip = parse_address(address)
            found = address if ip is None else prefix_key(ip, self._ipv6, 32).partition(":")[2]
            if len(self._prefixes) >= self._most_targets:
                self._prefixes.clear()
            if len(address) <= LONGEST_PATH:
                self._prefixes[address] = found
        return found

    def _target(self, zeroed: bytes, entry: Entry, path: str) -> Target:
        """Find the target of a path, and remember it for all paths that are alike but for numbers, if they have the
        same."""
        method: str = entry[2]
        name, shape = self._shapes.describe(method, path)
        host: str = entry[5] if self._with_hosts else ""
        shaped = f"{method} {host} {name} {shape}"
        made = self._shaped.get(shaped)
        if made is None:
            run, before = self.run, self.before
            made = Target(
                self._endpoint(name),
                None if run is None else run.rules_for(entry, path),
                None if before is None else before.rules_for(entry, path),
            )
            if len(shaped) <= LONGEST_PATH:
                if len(self._shaped) >= self._most_targets:
                    self._shaped.clear()
                self._shaped[shaped] = made
        of_path = path.encode("utf-8", "surrogatepass").translate(ZEROS)
        if len(zeroed) <= LONGEST_PATH and self._shapes.is_numbered(of_path):
            if self._remembered >= self._most_targets:
                self._targets.clear()
                self._remembered = 0
            by_path = self._targets.get(method)
            if by_path is None:
                by_path = self._targets[method] = {}
            by_path[zeroed] = made
            self._remembered += 1
        return made

    def _endpoint(self, name: str) -> EndpointCounts:
        found = self._by_name.get(name)
        if found is None:
            if len(self._by_name) >= MOST_ENDPOINTS:
                name = OTHER
            found = self._by_name.get(name)
            if found is None:
                found = self._by_name[name] = EndpointCounts(name)
        return found

    def endpoints(self) -> Collection[EndpointCounts]:
        """Return the counts of all endpoints."""
        return self._by_name.values()

    def finish(self) -> None:
        """Close what is counted until the end of the log."""
        for run in (self.run, self.before):
            if run is not None:
                run.finish()
        if self.peaks is not None:
            self.peaks.finish()
