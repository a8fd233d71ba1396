"""Every known mistake is told of a policy that makes it, and not of one that does not."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import parse_limit
from ratebound.policy import ANY_FUNCTION, Match, Policy, PolicyError, Rule, load_policy, read_policy
from ratebound.policy.lint.checks import advise
from ratebound.policy.lint.known_mistakes import MISTAKES, PolicyAdvice
from ratebound.policy.lint.redundant_limit import is_redundant, most_within
from ratebound.policy.model.rule import Mode
from ratebound.testing import FakeClock
from tests.policy.gates import EXAMPLES, decide, gate_of, request

# By name: policies that make the mistake, and the nearest that do not.
WRONG: dict[str, list[str]] = {
    "fixed-window-on-credentials": [
        "rules: [{name: a, match: {paths: /auth/login}, limits: 5/minute fixed-window}]",
        "rules: [{name: a, match: {paths: /wp-login.php}, limits: 5/minute fixed-window}]",
        "rules: [{name: a, match: {paths: /oauth/token}, limits: 5/minute fixed-window}]",
        "rules: [{name: a, match: {paths: '/v{n}/password'}, limits: {free: 5/minute fixed-window, default: deny}}]\n"
        "tiers: [free]",
        "rules: [{name: a, match: {paths: /login}, limits: 5/calendar-day}]",
    ],
    "login-without-account": [
        "rules: [{name: a, match: {paths: /login}, by: address, limits: 5/minute}]",
        "rules: [{name: a, match: {paths: /login}, by: address, limits: 5/minute}, "
        "{name: b, match: {paths: /login}, by: {call: account}, limits: 5 concurrent}]",
        "rules: [{name: a, match: {paths: /login}, by: address, limits: 5/minute}, "
        "{name: b, match: {paths: /login}, by: {call: account}, limits: 5/calendar-day, over: allow}]",
        "identities: {api-key: {verify: find}}\n"
        "rules: [{name: a, match: {paths: /login}, by: address, limits: 5/minute}, "
        "{name: b, by: api-key, limits: 9/second}]",
    ],
    "login-without-address": [
        "rules: [{name: a, match: {paths: /sign-in}, by: {call: account}, limits: 5/minute}]",
    ],
    "open-on-login": [
        "rules: [{name: a, match: {paths: /login}, failure: open, limits: 5/minute}]",
        "failure: open\nrules: [{name: a, match: {paths: /user/reset-password}, limits: 5/minute}]",
    ],
    "agent-on-credentials": [
        "rules: [{name: a, match: {paths: /login}, by: address + agent, limits: 5/minute}]",
    ],
    "address-alone": ["rules: [{name: a, by: address, limits: 5/minute}, {name: b, by: prefix, limits: 50/minute}]"],
    "one-limit-for-everything": ["rules: [{name: a, limits: 100/minute}]"],
    "health-check-limited": [
        "rules: [{name: a, match: {paths: /healthz}, limits: 1000/second}]",
        "rules: [{name: a, limits: 100/hour}]",
        "exempt: [{paths: /favicon.ico}]\nrules: [{name: a, match: {methods: GET}, limits: 5/minute}]",
    ],
    "spoofable-header": ["trusted: {single: {true-client-ip: [192.0.2.0/24]}}\nrules: [{name: a, limits: 9/second}]"],
    "hops-without-proxies": ["trusted: {hops: 2}\nrules: [{name: a, limits: 9/second}]"],
    "unlimited-by-header": [
        "rules: [{name: a, match: {headers: {x-internal: '1'}}, limits: unlimited, final: true}, "
        "{name: b, limits: 9/second}]",
        "rules: [{name: a, match: {headers: {x-internal: true}}, limits: unlimited}, "
        "{name: b, default: true, limits: 9/second}]",
        "exempt: [{paths: /x, headers: {x-internal: '1'}}]\nrules: [{name: b, limits: 9/second}]",
    ],
    "identity-not-verified": [
        "trusted: [10.0.0.0/8]\nidentities: {api-key: {proxy: true}}\n"
        "rules: [{name: a, by: api-key, limits: 9/second}]",
    ],
    "long-verify-cache": [
        "identities: {api-key: {verify: {call: find, cache: 2 hours}}}\n"
        "rules: [{name: a, by: api-key, limits: 9/second}]",
    ],
    "redundant-limit": [
        "rules: [{name: a, limits: 10/second; 1000/minute}]",
        "rules: [{name: a, limits: 10/second burst 20; 100/second burst 200 gcra}]",
        "rules: [{name: a, by: user, limits: 5/minute}, {name: b, by: user, match: {paths: /x}, limits: 9/minute}]",
        "rules: [{name: a, by: user, limits: 5/minute}, {name: b, by: user, limits: 5/minute}]",
        "rules: [{name: a, limits: 5/minute fixed-window; 300/hour fixed-window}]",
        "rules: [{name: a, limits: 1000/calendar-day; 31000/calendar-month}]",
        "rules: [{name: a, limits: 1/hour; 5000/calendar-month in Europe/Berlin from 15}]",
        "rules: [{name: a, by: user, limits: 2 concurrent}, {name: b, by: user, limits: 3 concurrent}]",
    ],
    "burst-out-of-reach": [
        "rules: [{name: a, limits: 10/second; 300/minute burst 50}]",
        "rules: [{name: a, limits: 10/second burst 200; 100/minute}]",
    ],
    "all-at-once": [
        "rules: [{name: a, limits: 10000/day}]",
        "rules: [{name: a, limits: 10000/calendar-month in Europe/Berlin}]",
        "rules: [{name: a, limits: 10000/calendar-month}, {name: b, limits: 9/second, match: {paths: /x}}]",
        "rules: [{name: a, limits: 10000/calendar-month}, {name: b, limits: 9/second, mode: shadow}]",
    ],
    "short-lease": ["rules: [{name: a, limits: 9/second; 3 concurrent for 2 seconds}]"],
    "long-block-by-address": [
        "penalties: {p: {after: 2 strikes/hour, block: [1 hour, 1 day]}}\n"
        "rules: [{name: a, by: address, limits: 9/second, penalty: p}]",
        "rules: [{name: a, by: prefix, limits: 9/second; 2 strikes/hour block 2 hours}]",
    ],
    "unused-penalty": ["penalties: {p: 2 strikes/hour block 1 hour}\nrules: [{name: a, limits: 9/second}]"],
    "large-distinct": [
        "rules: [{name: a, limits: 9/second; 2000 distinct n/hour large, by: address, distinct: {n: query.n}}]"
    ],
    "penalty-with-open-failure": [
        "penalties: {p: 2 strikes/hour block 1 hour}\nrules: [{name: a, limits: 9/second, penalty: p, failure: open}]",
        "failure: open\nrules: [{name: a, limits: 9/second; 2 strikes/hour block 1 hour}]",
    ],
    "strikes-without-rate": [
        "penalties: {p: 2 strikes/hour block 1 hour}\n"
        "rules: [{name: a, by: address, limits: unlimited, penalty: p, strike: failure}]",
        "rules: [{name: a, by: address, limits: 3 concurrent; 2 strikes/hour block 1 hour, strike: {status: 401}}]",
        "penalties: {p: 2 strikes/hour block 1 hour}\n"
        "rules: [{name: a, match: {paths: /a}, by: address, limits: unlimited, penalty: p, strike: failure},"
        " {name: b, match: {paths: /b}, limits: 9/second}]",
    ],
    "target-alone": [
        "rules: [{name: a, limits: 9/second, by: query.q}]",
        "rules: [{name: a, match: {paths: /login}, limits: 9/second, by: body.username}, "
        "{name: b, match: {paths: /other}, limits: 9/second, by: address}]",
        "rules: [{name: a, limits: 9/second, by: query.q}, {name: b, limits: 9/second, by: global}]",
        "rules: [{name: a, limits: 9/second, by: query.r + address}]",
    ],
    "metered-alone": [
        "rules: [{name: a, limits: 10000/calendar-month, over: allow}]",
        "rules: [{name: a, limits: 10000/calendar-month over allow}, {name: b, limits: 9/second, mode: shadow}]",
        "rules: [{name: a, limits: 10000/calendar-month, over: allow}, "
        "{name: b, match: {paths: /x}, limits: 9/second}]",
    ],
    "priority-without-adaptive": ["rules: [{name: a, limits: 9/second, priority: low}]"],
    "fingerprint-without-salt": [
        "rules: [{name: a, by: fingerprint, limits: 9/second}]",
        "by: [user, 'fingerprint:24/56']\nrules: [{name: a, limits: 9/second}]",
        "rules: [{name: a, by: address + fingerprint, limits: 9/second}]",
    ],
    "lowered-for-long": [
        "adaptive: {latency: 1 s}\nrules: [{name: a, limits: 9/second; 999/hour}]",
        "adaptive: {latency: 1 s}\nrules: [{name: a, limits: 60/minute burst 3600, priority: high}]",
    ],
    "large-log": ["rules: [{name: a, limits: 5000/hour sliding-log}]"],
    "memory-with-workers": ["rules: [{name: a, limits: 9/second}]"],
    "missing-default": [
        "rules: [{name: a, match: {paths: /x}, limits: 9/second}]",
        "rules: [{name: a, match: {methods: GET}, limits: 9/second}]",
        "rules: [{name: a, match: {paths: /x}, limits: 9/second}, {name: b, mode: shadow, limits: 9/second}]",
    ],
    "ipv6-single-address": [
        "ipv6: 128\nrules: [{name: a, limits: 9/second}]",
        "rules: [{name: a, by: 'prefix:32/128', limits: 9/second}]",
        "block: ['2001:db8::1']\nrules: [{name: a, limits: 9/second}]",
    ],
    "global-alone": ["rules: [{name: a, match: {paths: /x}, by: global, limits: 9/second}]"],
    "wide-exempt": ["exempt: [{paths: '/status/{rest*}'}]\nrules: [{name: a, limits: 9/second}]"],
    "wide-allow": ["allow: [16.0.0.0/8]\nrules: [{name: a, limits: 9/second}]"],
    "nothing-enforced": [
        "switch: off\nrules: [{name: a, limits: 9/second}]",
        "switch: shadow\nrules: [{name: a, limits: 9/second}]",
        "rules: [{name: a, mode: shadow, limits: 9/second}]",
    ],
    "slice-beside-unsliced-rule": [
        "storage: redis://h\nrules: [{name: a, by: user, limits: 900/minute, slice: true}, "
        "{name: b, by: address, limits: 9000/minute}]",
        "storage: redis://h\nrules: [{name: b, limits: 9/second, match: {paths: '/x/{rest*}'}}, "
        "{name: a, match: {paths: [/x/y, /x/z]}, limits: 900/minute, slice: true}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}, "
        "{name: b, mode: shadow, limits: 90/minute}]",
        "storage: redis://h\nrules: [{name: a, default: true, limits: 900/minute, slice: true}, "
        "{name: b, mode: shadow, limits: 90/minute}]",
        "storage: redis://h\nrules: [{name: a, default: true, limits: 900/minute, slice: true}, "
        "{name: b, default: true, limits: 90/second}]",
        "storage: redis://h\nrules: [{name: f, match: {paths: /f}, limits: 9/second, final: true}, "
        "{name: a, match: {paths: /x}, limits: 900/minute, slice: true}, {name: b, limits: 90/second}]",
        "storage: redis://h\npenalties: {p: 3 strikes/hour block 1 hour}\n"
        "rules: [{name: a, limits: 900/minute, slice: true}, {name: b, by: address, limits: 900/minute, penalty: p}]",
    ],
    "deny-cache-beside-uncached-rule": [
        "storage: redis://h\nrules: [{name: a, by: user, limits: 900/minute, slice: true, deny_cache: true}, "
        "{name: b, by: address, limits: 9000/minute, slice: true}]",
    ],
    "slice-too-small": [
        "storage: redis://h\nrules: [{name: a, limits: 39/minute, slice: true}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute; 1000/hour, slice: 0.1%}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute burst 9, slice: true}]",
    ],
    "slice-with-charge": [
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true, charge: failure}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true, charge: {call: weight}}]",
    ],
    "slice-in-memory": [
        "rules: [{name: a, limits: 900/minute, slice: true}]",
        "rules: [{name: a, match: {paths: /a}, limits: 900/minute, slice: true}, "
        "{name: b, limits: 900/minute, slice: true}]",
    ],
    "deny-cache-in-memory": [
        "storage: memory://\nrules: [{name: a, limits: 900/minute, deny_cache: true}]",
        "storage: shm://zone\nrules: [{name: a, limits: 900/minute, deny_cache: true}]",
    ],
    "descriptor-never-matched": [
        "descriptors: [{name: a, domain: e, entries: [{p: /a*}], limits: 9/hour}, "
        "{name: b, domain: e, entries: [{p: /ab*}, k], limits: 9/hour}]",
        "descriptors: [{name: a, domain: e, entries: [k, p], limits: 9/hour}, "
        "{name: b, domain: e, entries: [k, {p: '*'}], limits: 9/hour}]",
    ],
}
RIGHT: dict[str, list[str]] = {
    "fixed-window-on-credentials": [
        "rules: [{name: a, match: {paths: /login}, limits: 5/minute}]",
        "rules: [{name: a, match: {paths: /blogin/posts}, limits: 5/minute fixed-window}]",
        "rules: [{name: a, match: {paths: /login}, limits: 5/minute fixed-window, mode: shadow}]",
    ],
    "login-without-account": [
        "rules: [{name: a, match: {paths: /login}, by: address, limits: 5/minute}, "
        "{name: b, match: {paths: /login}, by: {call: account}, limits: 5/minute}]",
        "rules: [{name: a, match: {paths: /catalog}, by: address, limits: 5/minute}]",
    ],
    "login-without-address": [
        "rules: [{name: a, match: {paths: /login}, by: {call: account}, limits: 5/minute}, "
        "{name: b, stage: early, limits: 50/minute}]",
    ],
    "open-on-login": [
        "failure: open\nrules: [{name: a, match: {paths: /login}, failure: closed, limits: 5/minute}]",
        "rules: [{name: a, match: {paths: /search}, failure: open, limits: 5/minute}]",
    ],
    "agent-on-credentials": [
        "rules: [{name: a, match: {paths: /search}, by: address + agent, limits: 5/minute}]",
    ],
    "address-alone": [
        "rules: [{name: a, by: address, limits: 5/minute}, {name: b, limits: 50/minute}]",
        "rules: [{name: a, match: {paths: /x}, by: address, limits: 5/minute}]",
        "overrides: [{client: 192.0.2.1, limits: 50/minute}]\nrules: [{name: a, by: address, limits: 5/minute}]",
    ],
    "one-limit-for-everything": [
        "rules: [{name: a, limits: 100/minute}, {name: b, match: {paths: /x}, limits: 5/minute}]",
        "rules: [{name: a, limits: 100/minute, cost: {call: weight}}]",
        "tiers: [free]\nrules: [{name: a, limits: {free: 5/minute, default: 100/minute}}]",
    ],
    "health-check-limited": [
        "rules: [{name: a, limits: 100/minute}]",
        "exempt: [{paths: /health, methods: GET}]\nrules: [{name: a, limits: 5/minute}]",
        "allow: [10.0.0.1]\nrules: [{name: a, limits: 5/minute}]",
        "rules: [{name: h, match: {paths: /ping}, limits: unlimited, final: true}, {name: a, limits: 5/minute}]",
        "rules: [{name: a, match: {methods: POST}, limits: 5/minute}]",
        "rules: [{name: a, limits: 3 concurrent for 10 minutes}]",
        "rules: [{name: a, limits: 100/calendar-month over allow}]",
    ],
    "spoofable-header": ["trusted: {single: {cf-connecting-ip: [192.0.2.0/24]}}\nrules: [{name: a, limits: 9/second}]"],
    "hops-without-proxies": ["trusted: {hops: 2, proxies: [10.0.0.0/8]}\nrules: [{name: a, limits: 9/second}]"],
    "unlimited-by-header": [
        "rules: [{name: a, match: {headers: {x-internal: '1'}, addresses: [10.0.0.0/8]}, limits: unlimited, "
        "final: true}, {name: b, limits: 9/second}]",
        "rules: [{name: a, match: {headers: {x-internal: '1'}}, limits: unlimited}, {name: b, limits: 9/second}]",
        "rules: [{name: a, match: {headers: {x-mobile: '1'}}, limits: 5/minute, final: true}]",
    ],
    "identity-not-verified": [
        "trusted: [10.0.0.0/8]\nidentities: {tenant: {proxy: true}}\nrules: [{name: a, by: tenant, limits: 9/second}]",
        "identities: {api-key: {verify: find}}\nrules: [{name: a, by: api-key, limits: 9/second}]",
    ],
    "long-verify-cache": [
        "identities: {api-key: {verify: {call: find, cache: 60 minutes}}}\n"
        "rules: [{name: a, by: api-key, limits: 9/second}]",
    ],
    "redundant-limit": [
        "rules: [{name: a, limits: 10/second burst 20; 500/minute}]",
        "rules: [{name: a, limits: 10/second; 1000/minute, warn: 80%}]",
        "rules: [{name: a, by: user, limits: 5/minute}, {name: b, by: address, match: {paths: /x}, limits: 9/minute}]",
        "rules: [{name: a, by: user, match: {paths: /x}, limits: 5/minute}, {name: b, by: user, limits: 9/minute}]",
        "rules: [{name: a, by: user, limits: 5/minute, default: true}, "
        "{name: b, by: user, match: {paths: /x}, limits: 9/minute}]",
        "rules: [{name: a, by: user, limits: 5/minute, mode: shadow}, "
        "{name: b, by: user, match: {paths: /x}, limits: 9/minute}]",
        "rules: [{name: a, by: user, limits: 5/minute}, "
        "{name: b, by: user, match: {paths: /x}, cost: 3, limits: 9/minute}]",
        "rules: [{name: a, match: {paths: /x}, by: user, limits: 9/minute}, "
        "{name: f, match: {paths: /x, methods: GET}, by: address, limits: 30/second, final: true}, "
        "{name: b, by: user, limits: 5/minute}]",
        "overrides: [{client: user:x, rules: a, limits: 50/minute}]\n"
        "rules: [{name: a, by: user, limits: 5/minute}, {name: b, by: user, match: {paths: /x}, limits: 9/minute}]",
        "rules: [{name: a, limits: 5/minute fixed-window; 299/hour fixed-window}]",
        "rules: [{name: a, limits: 1000/calendar-day; 30999/calendar-month}]",
        "rules: [{name: a, limits: 1000/calendar-day; 31000/calendar-month in Asia/Tokyo}]",
        "rules: [{name: a, limits: 5/calendar-month over allow; 9/calendar-month from 15 as other}]",
        "rules: [{name: a, limits: 5/minute; 3 concurrent}]",
        "rules: [{name: a, limits: 3 concurrent; 500/minute}]",
        "rules: [{name: a, limits: 10/second; 1000/calendar-day over allow}]",
    ],
    "burst-out-of-reach": [
        "rules: [{name: a, limits: 10/second burst 20; 300/minute}]",
        "rules: [{name: a, limits: 10/second burst 20; 300/minute burst 20 gcra}]",
        "rules: [{name: a, limits: 10/second burst 20; 3 concurrent}]",
        "rules: [{name: a, limits: 10/second burst 20; 5/calendar-month over allow}]",
    ],
    "all-at-once": [
        "rules: [{name: a, limits: 10/second; 10000/calendar-month}]",
        "rules: [{name: a, limits: 10000/calendar-month}, {name: b, limits: 10/second}]",
        "rules: [{name: a, limits: 10000/calendar-month; 3 concurrent}]",
        "rules: [{name: a, limits: 10000/calendar-month, over: allow}]",
        "rules: [{name: a, limits: 10/second; 10000/day}]",
        "rules: [{name: a, limits: 10/day}]",
        "rules: [{name: a, limits: 100000/second}]",
    ],
    "long-block-by-address": [
        "penalties: {p: {after: 2 strikes/hour, block: [5 minutes, 1 hour]}}\n"
        "rules: [{name: a, by: address, limits: 9/second, penalty: p}]",
        "rules: [{name: a, by: [user, address], limits: 9/second; 2 strikes/hour block 2 hours}]",
    ],
    "unused-penalty": [
        "penalties: {p: 2 strikes/hour block 1 hour}\nrules: [{name: a, limits: 9/second, penalty: p}]",
    ],
    "large-distinct": [
        "rules: [{name: a, limits: 9/second; 1000 distinct n/hour, by: address, distinct: {n: query.n}}]",
    ],
    "penalty-with-open-failure": [
        "failure: open\nrules: [{name: a, limits: 9/second; 2 strikes/hour block 1 hour, failure: local}]",
    ],
    "strikes-without-rate": [
        "rules: [{name: a, by: address, limits: 9/second; 2 strikes/hour block 1 hour, strike: failure}]",
        "penalties: {p: 2 strikes/hour block 1 hour}\n"
        "rules: [{name: a, match: {paths: /a}, by: address, limits: unlimited, penalty: p, strike: failure},"
        " {name: b, limits: 9/second}]",
    ],
    "target-alone": [
        "rules: [{name: a, match: {paths: /login}, limits: 9/second, by: body.username}, "
        "{name: b, limits: 9/second, by: address}]",
        "rules: [{name: a, limits: 9/second, by: query.q}, {name: b, limits: 9/second}]",
    ],
    "short-lease": [
        "rules: [{name: a, limits: 3 concurrent}]",
        "rules: [{name: a, limits: 3 concurrent for 10 seconds}]",
        "rules: [{name: a, limits: 5/2 seconds}]",
    ],
    "metered-alone": [
        "rules: [{name: a, limits: 10000/calendar-month, over: allow}, {name: b, limits: 9/second}]",
        "rules: [{name: a, limits: 10/second; 10000/calendar-month over allow}]",
        "rules: [{name: a, match: {paths: /x/y}, limits: 5/calendar-day over allow}, "
        "{name: b, match: {paths: '/x/{rest*}'}, limits: 3 concurrent}]",
        "rules: [{name: a, limits: 9/calendar-day}]",
    ],
    "fingerprint-without-salt": [
        "salt: a long random text\nrules: [{name: a, by: fingerprint, limits: 9/second}]",
        "rules: [{name: a, by: prefix, limits: 9/second}]",
    ],
    "priority-without-adaptive": [
        "adaptive: {latency: 1 s}\nrules: [{name: a, limits: 9/second, priority: low}]",
        "rules: [{name: a, limits: 9/second, priority: normal}]",
    ],
    "lowered-for-long": [
        "rules: [{name: a, limits: 9/second; 999/hour}]",
        "adaptive: {latency: 1 s}\nrules: [{name: a, limits: 9/second; 999/hour, priority: critical}]",
        "adaptive: {latency: 1 s}\nrules: [{name: a, limits: 9/second; 999/calendar-day; 1/hour; 3 concurrent}]",
    ],
    "large-log": ["rules: [{name: a, limits: 5000/hour}]", "rules: [{name: a, limits: 1000/hour sliding-log}]"],
    "memory-with-workers": ["storage: redis://localhost\nrules: [{name: a, limits: 9/second}]"],
    "missing-default": [
        "rules: [{name: a, match: {paths: /x}, limits: 9/second}, {name: b, default: true, limits: 99/second}]",
        "rules: [{name: a, match: {methods: [GET]}, limits: 9/second}, "
        "{name: b, match: {methods: [POST, PUT, PATCH, DELETE]}, limits: 9/second}]",
        "block: [192.0.2.1]",
    ],
    "ipv6-single-address": [
        "ipv6: 56\nrules: [{name: a, by: 'prefix:48', limits: 9/second}]",
        "block: ['2001:db8::/64', 192.0.2.1, '::ffff:192.0.2.7', 'user:ann']\nrules: [{name: a, limits: 9/second}]",
    ],
    "global-alone": [
        "rules: [{name: a, match: {paths: /x}, by: global, limits: 9/second}, {name: b, limits: 3/second}]",
        "rules: [{name: a, match: {paths: /x}, by: global, limits: deny}]",
    ],
    "wide-exempt": ["exempt: [{paths: /status, methods: GET}]\nrules: [{name: a, limits: 9/second}]"],
    "wide-allow": ["allow: [10.0.0.0/8, 192.0.2.0/24, user:x]\nrules: [{name: a, limits: 9/second}]"],
    "nothing-enforced": [
        "rules: [{name: a, mode: shadow, limits: 9/second}, {name: b, limits: 9/second}]",
    ],
    "slice-beside-unsliced-rule": [
        "storage: redis://h\nrules: [{name: a, by: user, limits: 900/minute, slice: true}, "
        "{name: b, by: address, limits: 9000/minute, slice: true}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}, "
        "{name: b, match: {paths: /x}, limits: 9/second}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}, "
        "{name: b, by: address, stage: early, limits: 9/second}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}, "
        "{name: b, default: true, limits: 9/second}]",
        "storage: redis://h\nrules: [{name: a, default: true, limits: 900/minute, slice: true}, "
        "{name: b, match: {paths: /x}, limits: 9/second}]",
        "storage: redis://h\nrules: [{name: a, match: {paths: /x}, limits: 900/minute, slice: true, final: true}, "
        "{name: b, limits: 9/second}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}, {name: b, limits: unlimited}]",
        "storage: redis://h\ntiers: [pro]\nrules: [{name: a, limits: 900/minute, slice: true}, "
        "{name: b, limits: {pro: unlimited, default: 9/second}}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}, "
        "{name: b, limits: {call: find, otherwise: 9/second}}]",
        "storage: redis://h\nrules: [{name: a, mode: shadow, limits: 900/minute, slice: true}, "
        "{name: b, limits: 9/second}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true, candidate: 90/minute}]",
    ],
    "deny-cache-beside-uncached-rule": [
        "storage: redis://h\nrules: [{name: a, by: user, limits: 900/minute, slice: true, deny_cache: true}, "
        "{name: b, by: address, limits: 9000/minute, deny_cache: true}]",
    ],
    "slice-too-small": [
        "storage: redis://h\nrules: [{name: a, limits: 40/minute, slice: true}]",
        "storage: redis://h\nrules: [{name: a, limits: 20/minute, slice: 10%}]",
        "storage: redis://h\nrules: [{name: a, limits: 9/minute burst 40, slice: true}]",
        "storage: redis://h\nrules: [{name: a, limits: 9/minute, deny_cache: true}]",
    ],
    "slice-with-charge": [
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true, cost: 3}]",
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, charge: failure}]",
    ],
    "slice-in-memory": [
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, slice: true}]",
        "rules: [{name: a, limits: 900/minute, slice: false, deny_cache: true}]",
    ],
    "deny-cache-in-memory": [
        "storage: redis://h\nrules: [{name: a, limits: 900/minute, deny_cache: true}]",
        "rules: [{name: a, limits: 900/minute, slice: true}]",
    ],
    "descriptor-never-matched": [
        "descriptors: [{name: b, domain: e, entries: [{p: /ab*}], limits: 9/hour}, "
        "{name: a, domain: e, entries: [{p: /a*}], limits: 9/hour}, "
        "{name: c, domain: e, entries: [{p: /abc}], limits: 9/hour}, {name: d, domain: e, entries: [p], limits: deny}]",
        "descriptors: [{name: a, domain: e, entries: [{p: /a*}], limits: 9/hour}, "
        "{name: b, domain: f, entries: [{p: /ab*}], limits: 9/hour}, "
        "{name: c, domain: e, entries: [{p: /a*}, {p: /ab*}], limits: 9/hour}]",
    ],
}
WORKERS = {"memory-with-workers": 4}
# Examples show one thing each, and leave the rest out.
MEANT = {
    "costs.yaml": {"missing-default"},
    "endpoints.json": {"login-without-account"},
    "endpoints.toml": {"login-without-account"},
    "endpoints.yaml": {"login-without-account"},
    "health.yaml": {"address-alone", "one-limit-for-everything"},
    "identities.yaml": {"health-check-limited"},
    "lists.yaml": {"one-limit-for-everything"},
    "per_address.yaml": {"address-alone", "one-limit-for-everything"},
    "per_range.yaml": {"address-alone", "health-check-limited"},
    "per_user.yaml": {"one-limit-for-everything"},
    "shared_addresses.yaml": {"health-check-limited", "one-limit-for-everything"},
    "tiers.yaml": {"health-check-limited"},
    "trying_out.yaml": {"address-alone", "health-check-limited", "one-limit-for-everything"},
}


def told(text: str, workers: int = 1) -> list[PolicyAdvice]:
    return advise(read_policy(text, functions=ANY_FUNCTION, environ={}), workers=workers)


def cases(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(name, text) for name, texts in table.items() for text in texts]


def test_every_mistake_has_a_policy_that_makes_it_and_one_that_does_not() -> None:
    assert set(WRONG) == set(RIGHT) == set(MISTAKES)


@pytest.mark.parametrize(("name", "text"), cases(WRONG))
def test_a_mistake_is_told_by_its_name_and_place(name: str, text: str) -> None:
    found = [warning for warning in told(text, WORKERS.get(name, 1)) if warning.name == name]
    assert len(found) == 1
    assert found[0].place
    assert found[0].wrong
    assert (found[0].why, found[0].instead) == MISTAKES[name]


def test_a_slice_that_is_too_small_is_told_with_the_share_that_is_enough() -> None:
    text = "storage: redis://h\nrules: [{{name: a, limits: 5/minute, slice: {}}}]"
    [wrong] = [warning.wrong for warning in told(text.format("true")) if warning.name == "slice-too-small"]
    assert wrong == "5% of '5/minute' of rule 'a' are 0.25 units at most, and 2 units are 40%"
    assert "slice-too-small" not in {warning.name for warning in told(text.format("40%"))}


@pytest.mark.parametrize(("name", "text"), cases(RIGHT))
def test_what_is_right_is_not_told(name: str, text: str) -> None:
    assert name not in {warning.name for warning in told(text, WORKERS.get(name, 1))}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_an_example_has_the_warnings_that_are_meant(name: str) -> None:
    policy = load_policy(EXAMPLES / name, functions=ANY_FUNCTION)
    assert {warning.name for warning in advise(policy)} == MEANT.get(name, set())


def test_a_policy_without_a_known_mistake() -> None:
    assert (
        told(
            """
exempt: [{paths: /health, methods: [GET, HEAD]}]
rules:
  - {name: login, match: {paths: /login, methods: POST}, by: address, stage: early, limits: 20/minute}
  - {name: account, match: {paths: /login, methods: POST}, by: {call: account}, limits: 5/minute}
  - {name: search, match: {paths: /search}, limits: 20/minute}
  - {name: others, default: true, limits: 10/second burst 50; 5000/hour}
"""
        )
        == []
    )


def test_the_place_of_a_mistake_names_the_tier() -> None:
    limits = "{free: 10/second; 1000/minute, pro: 9/second}"
    text = f"tiers: [free, pro]\ndefault_tier: free\nrules: [{{name: a, limits: {limits}}}]"
    found = [warning for warning in told(text) if warning.name == "redundant-limit"]
    assert [warning.where for warning in found] == ["rules[0].limits.free"]


LIMITS = [
    "5/minute",
    "100/minute",
    "10/second",
    "100/minute sliding-counter",
    "1000/minute",
    "7/second fixed-window",
    "300/hour fixed-window",
    "10/second burst 20",
    "60/minute burst 5",
    "3/second burst 4 leaky-bucket",
    "700/hour burst 30",
    "20/calendar-day",
    "600/calendar-month",
    "620/calendar-month",
    "140/calendar-week from sunday",
    "5/calendar-day in Asia/Tokyo",
    "200/calendar-month in Asia/Tokyo from 31",
    "3 concurrent",
    "5/calendar-day over allow",
]


PAIRS = [
    (weak, strict)
    for weak in LIMITS
    for strict in LIMITS
    if weak != strict and is_redundant(parse_limit(weak), parse_limit(strict), alike=True)
]
STEPS = 3_000 if os.environ.get("RATEBOUND_LONG") == "1" else 800


@pytest.mark.parametrize(("weak", "strict"), PAIRS)
def test_a_redundant_limit_is_never_the_only_one_to_deny(weak: str, strict: str, clock: FakeClock) -> None:
    gate = gate_of(f"rules: [{{name: a, limits: {strict}}}, {{name: b, limits: {weak}}}]", clock)
    for step in range(STEPS):
        verdict = decide(gate, request())
        if not verdict:
            assert verdict.decision is not None
            refusing = [o for o, rule in zip(verdict.decision.outcomes, verdict.rules, strict=True) if rule.name == "a"]
            assert any(not outcome.allowed for outcome in refusing)
            slow = 3_600.0 if "calendar" in weak + strict else 0.0
            clock.advance((0.01, 0.35, 1.7, 0.5 + slow)[step % 4])


def test_some_pairs_of_limits_are_told_apart() -> None:
    assert ("1000/minute", "10/second") in PAIRS
    assert ("10/second", "5/minute") in PAIRS
    assert ("100/minute sliding-counter", "100/minute") not in PAIRS, "the estimate may be above what really came"
    assert 10 < len(PAIRS) < len(LIMITS) ** 2 // 2


def test_the_most_that_a_limit_admits() -> None:
    minute = 60_000_000
    assert most_within(parse_limit("10/second burst 20"), minute) == 620
    assert most_within(parse_limit("10/second"), minute) == 600
    assert most_within(parse_limit("10/second fixed-window"), minute) == 610
    assert most_within(parse_limit("5/hour"), minute) == 5
    assert most_within(parse_limit("5/calendar-month"), minute) == 10
    assert most_within(parse_limit("5/calendar-month"), 28 * 24 * 60 * minute) == 15


def test_slots_by_address_are_no_mistake() -> None:
    text = "rules: [{name: a, by: address, match: {paths: /export}, limits: 3 concurrent}, {name: b, limits: 9/second}]"
    assert told(text) == []


KINDS = st.lists(
    st.sampled_from([*LIMITS, "500/calendar-year", "2/day fixed-window over allow"]), min_size=1, max_size=3
)


@given(
    limits=st.lists(st.one_of(KINDS, st.just("deny"), st.just("unlimited")), min_size=1, max_size=4),
    paths=st.lists(st.sampled_from(["/login", "/x", "/x/{rest*}", ""]), min_size=4, max_size=4),
    by=st.lists(st.sampled_from(["address", "user", "global"]), min_size=4, max_size=4),
    modes=st.lists(st.sampled_from(["enforce", "shadow"]), min_size=4, max_size=4),
)
def test_every_combination_of_limits_can_be_checked(
    limits: list[list[str] | str], paths: list[str], by: list[str], modes: list[Mode]
) -> None:
    rules = []
    for place, one in enumerate(limits):
        match = Match(paths=[paths[place]]) if paths[place] else Match()
        try:
            rules.append(Rule(f"r{place}", one, match=match, by=by[place], mode=modes[place]))
        except PolicyError:  # two limits that share a state
            return
    for warning in advise(Policy(rules=rules)):
        assert (warning.why, warning.instead) == MISTAKES[warning.name]
        if warning.name in ("redundant-limit", "all-at-once", "burst-out-of-reach"):
            assert "over allow" not in warning.wrong
        if warning.name in ("all-at-once", "burst-out-of-reach", "health-check-limited"):
            assert "concurrent" not in warning.wrong
