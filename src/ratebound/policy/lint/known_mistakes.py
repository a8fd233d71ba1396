"""The texts of all warnings, by name: why the mistake matters, and what to write instead. checks.py finds mistakes."""

from typing import NamedTuple

from ratebound.policy.problem import Place, Problem


class PolicyAdvice(NamedTuple):
    """One warning about a valid policy that probably does not do what its author wants.

    `wrong` says what this policy does, `why` why that matters, `instead` what to write instead.
    """

    name: str
    place: Place
    wrong: str
    why: str
    instead: str

    @property
    def where(self) -> str:
        """Return the place as text: `rules[2].limits`."""
        return Problem(self.place, "").where


def advice(name: str, place: Place, wrong: str) -> PolicyAdvice:
    """Return the warning of that name for one place in a policy."""
    return PolicyAdvice(name, place, wrong, *MISTAKES[name])


# (why it matters, what to write instead)
MISTAKES: dict[str, tuple[str, str]] = {
    "fixed-window-on-credentials": (
        "A client that sends requests just before and just after a window ends gets twice the count: twice the guesses"
        " at a password.",
        "Leave the algorithm out, or write sliding-log: '5/minute' then allows at most 5 in any minute.",
    ),
    "login-without-account": (
        "An attacker with many addresses can guess the password of one account from each of them.",
        "Add a rule on the same path that counts by the account of the login: 'by: body.username', with the name of the"
        " field. Anyone who knows an account name can use up this quota and"
        " lock the owner out. To prevent that, keep the limit well above what an owner needs, refund successful logins,"
        " or count by account and address together.",
    ),
    "login-without-address": (
        "An attacker can try one password on a million accounts from one address: each account sees a single attempt.",
        "Add a rule on the same path with 'by: address', best with 'stage: early'.",
    ),
    "open-on-login": (
        "An attacker who makes the storage unavailable can guess passwords without a limit.",
        "Write 'failure: local' or 'failure: closed' on this rule.",
    ),
    "agent-on-credentials": (
        "A client chooses the headers that it sends, so it can get several quotas of guesses from one address.",
        "Write 'by: address' in this rule.",
    ),
    "address-alone": (
        "Clients of an office, a school or a mobile carrier share one address. A botnet has many addresses.",
        "Count authenticated clients by user: 'by: [user, address]'. Add overrides for shared addresses that you know.",
    ),
    "one-limit-for-everything": (
        "A login, an export and a plain read differ in cost and in risk; one limit fits none of them.",
        "Add rules for expensive or sensitive requests, like login, signup, search and exports, or set their 'cost'.",
    ),
    "health-check-limited": (
        "A load balancer that receives a 429 for its probe takes the server out of rotation. The other servers get its"
        " load, and fail in turn.",
        "Write 'exempt: [{paths: [/health], methods: [GET, HEAD]}]' with the paths of your health checks.",
    ),
    "spoofable-header": (
        "Proxies pass this header on as the client sent it, unless they are configured to overwrite it. A client could"
        " choose its own address.",
        "Use X-Forwarded-For, 'trusted: [ranges of your proxies]', or configure the proxy to overwrite the header.",
    ),
    "hops-without-proxies": (
        "A client that reaches the application directly, without the proxies, can choose an address for each request.",
        "List the proxies as well: 'trusted: {hops: 2, proxies: [10.0.0.0/8]}'.",
    ),
    "unlimited-by-header": (
        "Any client can send any header and any host, so every client that knows of this one is unlimited.",
        "Match an address range, list the client's identity under 'allow', or give the client a tier.",
    ),
    "identity-not-verified": (
        "The client sends this header and the proxy passes it on, so a client that changes its value for each request"
        " gets a new quota each time.",
        "Add a verifier, 'verify: …', or let the proxy set a header of its own that it always overwrites.",
    ),
    "long-verify-cache": (
        "A revoked key or an expired token keeps working until the cached answer of the verifier expires.",
        "Cache for minutes: 'verify: {call: …, cache: 5 minutes}'.",
    ),
    "redundant-limit": (
        "The limit looks like protection, but has no effect.",
        "Remove it, or make it stricter than the other one.",
    ),
    "burst-out-of-reach": (
        "Every limit must allow a request, so the limit that admits the fewest requests at once sets the burst.",
        "Lower the burst to what the other limit admits at once, or give the other limit a burst too.",
    ),
    "all-at-once": (
        "No other limit spreads the requests: a client can send its whole quota within one second.",
        "Add a limit with a short period, for example '10/second burst 20; 10000/day'.",
    ),
    "short-lease": (
        "A process that pauses for longer than the lease, for example with a blocked event loop, loses its slots while"
        " their requests still run.",
        "Leave the lease out: it is one minute, and a slot is free as soon as its request ends. It only counts if a"
        " process dies.",
    ),
    "long-block-by-address": (
        "An office, a school or a mobile carrier has one address for many people. One of them can get all of them"
        " blocked for that long.",
        "Block addresses for an hour at most, 'block: [5 minutes, 1 hour]', or count by user where there is one: 'by:"
        " [user, address]'.",
    ),
    "unused-penalty": (
        "Nobody is ever blocked by it.",
        "Write its name in a rule, 'penalty: …', or remove it.",
    ),
    "large-distinct": (
        "Every value is stored for every client: memory grows with both, and a client decides how many it uses.",
        "Lower the count to what an honest client needs. A limit that stops a client after 20 accounts needs no more.",
    ),
    "penalty-with-open-failure": (
        "While the storage is unavailable this rule allows every request. Whoever makes it unavailable is not struck,"
        " and only processes that have seen a block keep it.",
        "Write 'failure: local' or 'failure: closed' on this rule.",
    ),
    "strikes-without-rate": (
        "Strikes within one second are one, so a client can send any number of requests in each second before it is"
        " blocked: thousands of passwords, for example.",
        "Add a rate to the rule, for example 'limits: 10/minute'.",
    ),
    "target-alone": (
        "A client chooses this value, so it gets a new quota with a new value in each request.",
        "Add a rule for the same requests that counts by address or by a verified identity.",
    ),
    "metered-alone": (
        "Metering counts and denies nothing, so a client can send any number of requests.",
        "Add a rule for the same requests with a limit that denies, for example '10/second burst 20'.",
    ),
    "fingerprint-without-salt": (
        "Without a secret anybody can compute which headers give which fingerprint, and use up the quota of somebody"
        " else in the same network.",
        "Give the policy a long random text, the same for all processes: 'salt: ${RATEBOUND_SALT}'.",
    ),
    "priority-without-adaptive": (
        "A priority says which limits are lowered first while the process is overloaded, and nothing lowers them.",
        "Write for example 'adaptive: {cpu: 85%, lag: 100 ms}' at the top, or leave the priorities out.",
    ),
    "lowered-for-long": (
        "While this limit is lowered, a client that has already used the lowered part of it is shut out until the"
        " overload is over.",
        "Lower a limit with a short period, for example '10/second', and write 'priority: critical' in the rule with"
        " the long one.",
    ),
    "large-log": (
        "A sliding log stores every request of every client, and copies them for each decision.",
        "Write sliding-counter, or a bucket: '1000/minute burst 100'.",
    ),
    "memory-with-workers": (
        "Each worker counts in its own memory, so a client gets the limit once per worker.",
        "Write 'storage: shm://api' if all workers are on one host, or else 'storage: redis://…'; or run one worker.",
    ),
    "missing-default": (
        "A request that matches no rule is not limited. That includes paths that were forgotten or are added later.",
        "Add a rule with 'default: true', no match and a generous limit.",
    ),
    "ipv6-single-address": (
        "An IPv6 client usually has at least a /64, so it can use a new address, and a new quota, for each request.",
        "Write 'ipv6: 64', or rules by prefix:64, prefix:56 and prefix:48 with rising limits, or block the /64.",
    ),
    "global-alone": (
        "One client can use up the quota that all clients share, and lock everybody else out.",
        "Add a rule with the same match that counts by client and has a lower limit.",
    ),
    "wide-exempt": (
        "Every path that is later added below this one is not limited either.",
        "Write exact paths and methods: '{paths: [/health], methods: [GET, HEAD]}'.",
    ),
    "wide-allow": (
        "A range this large holds addresses of strangers, and none of them is ever limited.",
        "List only addresses that you know.",
    ),
    "nothing-enforced": (
        "No request is denied. That is right while you try a policy, and wrong if it is forgotten.",
        "Write 'switch: on' or leave it out. To try a single rule, write 'mode: shadow' in that rule.",
    ),
    "slice-beside-unsliced-rule": (
        "All rules that apply to a request are one decision. If one of their limits has no slice, the request goes to"
        " the storage, and the slice never serves.",
        "Give the other rule a slice too, or leave out this one.",
    ),
    "deny-cache-beside-uncached-rule": (
        "A denial is repeated without the storage only if every limit that applies to the request has a deny cache.",
        "Write 'deny_cache: true' in the other rule too, or leave it out here.",
    ),
    "slice-too-small": (
        "A slice of one unit serves no second request, so every request goes to the storage.",
        "Leave the slice out of this rule: a small limit has no units to spare. Or take a share of at least 2 units.",
    ),
    "slice-with-charge": (
        "What a request gives back after its slice has ended is lost, and what it costs more than the slice holds takes"
        " a trip of its own to the storage.",
        "Leave the slice out where requests take longer than the slice lasts, or let it last longer: 'slice: {for: 5"
        " seconds}'.",
    ),
    "slice-in-memory": (
        "A slice saves trips to a server. Counts in memory, or in the shared memory of one host, take no trip.",
        "Write 'storage: redis://…', or leave the slices out.",
    ),
    "deny-cache-in-memory": (
        "A deny cache saves trips to a server. Counts in memory, or in the shared memory of one host, take no trip.",
        "Write 'storage: redis://…', or leave the deny caches out.",
    ),
    "descriptor-never-matched": (
        "A descriptor takes the first wildcard that its value begins with, in the order of the file, and an entry"
        " without a value only if no wildcard matches. It never tries another one.",
        "Write the longer wildcard before the shorter one, or leave this rule out.",
    ),
}
