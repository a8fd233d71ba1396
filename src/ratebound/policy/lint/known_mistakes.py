"""The known mistakes by name: why each matters, and what to write instead. Which policy makes one: checks.py."""

from typing import NamedTuple

from ratebound.policy.problem import Place, Problem


class Advice(NamedTuple):
    """A policy that loads, and still does not do what its author wants. `wrong` is what this one says."""

    name: str
    place: Place
    wrong: str
    why: str
    instead: str

    @property
    def where(self) -> str:
        """The place as text: `rules[2].limits`."""
        return Problem(self.place, "").where


def advice(name: str, place: Place, wrong: str) -> Advice:
    return Advice(name, place, wrong, *MISTAKES[name])


# (why it matters, what to write instead)
MISTAKES: dict[str, tuple[str, str]] = {
    "fixed-window-on-credentials": (
        "Around a boundary of the clock a fixed window lets twice its count through: twice the guesses.",
        "Leave the algorithm out, or write sliding-log: '5/minute' is then at most 5 in any minute.",
    ),
    "login-without-account": (
        "Somebody with many addresses can try passwords for one account from each of them.",
        "Add a rule on the same path that counts by the account that is asked for: 'by: {call: account_of}', with a"
        " function that reads it from the body, and says so by 'account_of.reads_body = True' (canonical_name folds its"
        " spellings). Who knows a name can use up that quota and lock its owner out: keep it well above what an owner"
        " needs, give it back for logins that succeed, or count by account and address together.",
    ),
    "login-without-address": (
        "From one address one password can be tried on a million accounts, each of which sees a single attempt.",
        "Add a rule on the same path with 'by: address', best with 'stage: early'.",
    ),
    "open-on-login": (
        "Whoever brings the storage down may guess passwords without a limit.",
        "Write 'failure: local' or 'failure: closed' on this rule.",
    ),
    "agent-on-credentials": (
        "A client chooses its user agent, and so gets several quotas of guesses from one address.",
        "Write 'by: address' here.",
    ),
    "address-alone": (
        "An office, a school or a mobile carrier is one address to you, and many clients; a botnet is the reverse.",
        "Count those whom you know by who they are, 'by: [user, address]'; give known shared addresses an override.",
    ),
    "one-limit-for-everything": (
        "A login, an export and a plain read cost you very different things; one number fits none of them.",
        "Add rules for what is expensive or dangerous: login, signup, search, exports; or give them a 'cost'.",
    ),
    "health-check-limited": (
        "A probe that is refused looks like a dead server: it is taken out, the others get its load, and so on.",
        "Write 'exempt: [{paths: [/health], methods: [GET, HEAD]}]' with the paths of your probes.",
    ),
    "spoofable-header": (
        "These headers are passed on as the client sent them, unless that proxy is told to overwrite them.",
        "Use the list that proxies append to, 'trusted: [their ranges]', or make sure that it is overwritten.",
    ),
    "hops-without-proxies": (
        "Whoever reaches the application directly, past the proxies, chooses an address for each request.",
        "Name the proxies as well: 'trusted: {hops: 2, proxies: [10.0.0.0/8]}'.",
    ),
    "freed-by-header": (
        "Any client can send a header, and any host in one: this sets free whoever knows of it.",
        "Match an address range, put the client into 'allow' by its identity, or give it a tier.",
    ),
    "identity-not-verified": (
        "A proxy passes this header on from the client: a new value for each request is a new quota for each.",
        "Give it a verifier, 'verify: …', or have the proxy set a header of its own that it always overwrites.",
    ),
    "revoked-for-long": (
        "A key that was revoked, or a token that has expired, keeps working for as long as its verifier is not asked.",
        "Remember it for minutes: 'verify: {call: …, cache: 5 minutes}'.",
    ),
    "never-bites": (
        "It reads like protection, and changes nothing.",
        "Leave it out, or make it stricter than the other one.",
    ),
    "burst-out-of-reach": (
        "All limits must allow a request, so the smallest of what they admit at once is the burst.",
        "Lower the burst to what the other limit admits at once, or give that one a burst, too.",
    ),
    "all-at-once": (
        "Nothing spreads it: a client may send the whole quota in one second.",
        "Add a short limit beside it, for example '10/second burst 20; 10000/day'.",
    ),
    "large-log": (
        "A sliding log keeps every request of every client, and copies them for each decision.",
        "Write sliding-counter, or a bucket: '1000/minute burst 100'.",
    ),
    "memory-with-workers": (
        "Each worker has a memory, and thus a count, of its own: clients get the limit as often as there are workers.",
        "Write 'storage: redis://…', or run one worker.",
    ),
    "missing-default": (
        "What matches no rule is not limited: the path that was forgotten, and the one that is added next year.",
        "Add a rule with 'default: true' and no match, with a generous limit.",
    ),
    "ipv6-single-address": (
        "An IPv6 client owns at least a /64: it can take a new address, and a new quota, for each request.",
        "Write 'ipv6: 64', or rules by prefix:64, prefix:56 and prefix:48 with rising limits.",
    ),
    "global-alone": (
        "One client can use up the quota of all, and so lock everybody out.",
        "Add a rule on the same match that counts by client, with less than the whole.",
    ),
    "wide-exempt": (
        "Whatever is added below that path later is not limited either.",
        "Name exact paths, and methods: '{paths: [/health], methods: [GET, HEAD]}'.",
    ),
    "wide-allow": (
        "All who can rent a machine there are never limited.",
        "Name the addresses that you know.",
    ),
    "nothing-enforced": (
        "Everything is let through: well while trying out, bad when forgotten.",
        "Write 'switch: on', or leave it out; rules that are tried are 'mode: shadow', one by one.",
    ),
}
