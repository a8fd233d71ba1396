"""The one table of all calls of the admin API.

Routes, validation, roles, the OpenAPI document and the documentation are made of it. What a call does is in
operations.py; the calls of a session, of live figures and of the document itself are answered by the site.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ratebound.admin import answer_schemas as answers
from ratebound.admin.call_fields import CallField
from ratebound.admin.operators import ROLES as ROLES
from ratebound.admin.operators import Operator as Operator
from ratebound.admin.operators import Role as Role


class AdminCall(NamedTuple):
    """One call of the API.

    `path` is relative to the mount. `role` is the least role that may call it; None if anybody may. `fields` stand in
    the query of a GET or a DELETE, and else in an object of JSON. Of each entry of `either` exactly one is given.
    `answer` is the JSON schema of the answer. `example` has the fields of an example, for the documentation.
    """

    name: str
    method: str
    path: str
    role: Role | None
    summary: str
    answer: Mapping[str, Any]
    fields: tuple[CallField, ...] = ()
    either: tuple[tuple[str, ...], ...] = ()
    example: Mapping[str, Any] = {}

    @property
    def is_write(self) -> bool:
        """True if it may change something, so that another site must not be able to make a browser send it."""
        return self.method != "GET"

    @property
    def has_body(self) -> bool:
        """True if its fields stand in the body."""
        return self.method in ("POST", "PUT")


CLIENT = CallField(
    "client",
    "client",
    "An address, a range of addresses, or an identity like user:42, as in the lists of a policy.",
    is_required=True,
)
CLIENTS = CallField(
    "client",
    "clients",
    "A client like user:42 or 203.0.113.7. Several for a rule that counts by several identities at once.",
    is_required=True,
)
RULE = CallField("rule", "name", "The name of the only rule to look at.")
FOR = CallField(
    "for", "duration", "How long it lasts: seconds, or text like 1 hour. Without it, until it is taken back."
)
REASON = CallField("reason", "line", "One line for other operators. Clients never see it.")
TIER = CallField("tier", "name", "The tier of the client, if no list of the policy gives it one.")

SINCE = CallField(
    "since", "instant", "From when: a day, or an instant like 2026-11-16T09:30:00Z. By default 30 days before the end."
)
UNTIL = CallField("until", "instant", "Until when; this instant does not belong to it. By default now.")
SPAN = CallField("by", "span", "The length of each span. By default day.")
ZONE = CallField("zone", "zone", "The time zone of days and months, like Europe/Berlin. By default UTC.")
NAMES = CallField("names", "flag", "yes adds names. It takes the role write, and is recorded.", role="write")

CALLS: tuple[AdminCall, ...] = (
    AdminCall("session", "GET", "api/session", "read", "Tell who is signed in, and with which role.", answers.SESSION),
    AdminCall(
        "sign_in",
        "POST",
        "api/session",
        None,
        "Sign in with a token. The answer sets a cookie.",
        answers.SESSION,
        (CallField("token", "token", "A token of the control plane.", is_required=True),),
        example={"token": "…"},
    ),
    AdminCall("sign_out", "DELETE", "api/session", "read", "Sign out: end the session of the cookie.", answers.DONE),
    AdminCall("figures", "GET", "api/figures", "read", "Read the figures of all processes.", answers.VIEW),
    AdminCall("history", "GET", "api/history", "read", "Read the figures of the last hour.", answers.HISTORY),
    AdminCall(
        "live",
        "GET",
        "api/live",
        "read",
        "Follow the figures: server-sent events named history, figures (once a second) and changed.",
        answers.EVENTS,
    ),
    AdminCall("rules", "GET", "api/rules", "read", "List the rules in force, and how each is switched.", answers.RULES),
    AdminCall(
        "shadow",
        "GET",
        "api/shadow",
        "read",
        "Compare shadows and candidates with the limits that are enforced.",
        answers.SHADOW,
    ),
    AdminCall(
        "promote",
        "POST",
        "api/promotions",
        "write",
        "Enforce the candidate limits of a rule, or a rule that is in shadow.",
        answers.SWITCH,
        (CallField("rule", "name", "The name of the rule.", is_required=True), FOR, REASON),
        example={"rule": "search", "reason": "a week without surprises"},
    ),
    AdminCall("blocks", "GET", "api/blocks", "read", "List the clients that operators have blocked.", answers.BLOCKS),
    AdminCall(
        "block",
        "POST",
        "api/blocks",
        "write",
        "Block a client before any rule, in all processes.",
        answers.BLOCK,
        (
            CLIENT._replace(is_required=False),
            CallField("digest", "digest", "The digest of a client in the figures, instead of its name."),
            FOR,
            REASON,
        ),
        either=(("client", "digest"),),
        example={"client": "203.0.113.7", "for": "1 hour", "reason": "scraping"},
    ),
    AdminCall(
        "unblock",
        "DELETE",
        "api/blocks",
        "write",
        "End the block of a client.",
        answers.REMOVED,
        (CLIENT,),
        example={"client": "203.0.113.7"},
    ),
    AdminCall(
        "overrides",
        "GET",
        "api/overrides",
        "read",
        "List clients with limits of their own.",
        answers.OVERRIDES,
    ),
    AdminCall(
        "override",
        "POST",
        "api/overrides",
        "write",
        "Give a client limits of its own, or another tier.",
        answers.OVERRIDE,
        (
            CLIENT,
            CallField("limits", "limits", "Limits like 1000/minute, or deny or unlimited."),
            CallField("tier", "name", "A tier of the policy."),
            CallField("rules", "names", "The rules that get the limits. Without it, all rules."),
            FOR,
            REASON,
        ),
        either=(("limits", "tier"),),
        example={"client": "user:42", "limits": "1000/minute", "for": "1 day", "reason": "import of old orders"},
    ),
    AdminCall(
        "remove_override",
        "DELETE",
        "api/overrides",
        "write",
        "Take the limits of its own from a client.",
        answers.REMOVED,
        (CLIENT, CallField("rule", "names", "A rule that the override names. Can be repeated: then all of them.")),
        example={"client": "user:42"},
    ),
    AdminCall(
        "switches", "GET", "api/switches", "read", "List the rules that operators have switched.", answers.SWITCHES
    ),
    AdminCall(
        "set_switch",
        "PUT",
        "api/switches",
        "write",
        "Switch a rule, or all rules: on, off or shadow.",
        answers.SWITCH,
        (
            CallField("rule", "name", "The name of the rule. Without it, or with null, all rules."),
            CallField(
                "state",
                "state",
                "on enforces the rule, also one that the policy has in shadow; off checks nothing; shadow reports and"
                " never denies.",
                is_required=True,
            ),
            FOR,
            REASON,
        ),
        example={"rule": "search", "state": "shadow", "for": "10 minutes", "reason": "too strict since the release"},
    ),
    AdminCall(
        "remove_switch",
        "DELETE",
        "api/switches",
        "write",
        "Take back a switch: the policy decides again.",
        answers.REMOVED,
        (CallField("rule", "name", "The name of the rule. Without it, the switch for all rules."),),
        example={"rule": "search"},
    ),
    AdminCall(
        "usage",
        "GET",
        "api/usage",
        "read",
        "Read what a client has used of each limit that counts it.",
        answers.USAGE,
        (CLIENTS, RULE, TIER),
        example={"client": "user:42"},
    ),
    AdminCall(
        "grant",
        "POST",
        "api/grants",
        "write",
        "Add units to what a client may use in the current windows of its quotas.",
        answers.USAGE,
        (CLIENTS, CallField("units", "units", "How many units to add.", is_required=True), RULE),
        example={"client": "user:42", "units": 500},
    ),
    AdminCall(
        "reset",
        "POST",
        "api/resets",
        "write",
        "Forget what a client has spent, penalties included.",
        answers.DONE,
        (CLIENTS, RULE),
        example={"client": "user:42"},
    ),
    AdminCall(
        "holders",
        "GET",
        "api/holders",
        "read",
        "List the slots of concurrent requests that a client holds.",
        answers.HOLDERS,
        (CLIENTS, RULE),
        example={"client": "user:42"},
    ),
    AdminCall(
        "top",
        "GET",
        "api/top",
        "read",
        "List the clients that were denied most, as digests.",
        answers.TOP,
        (NAMES,),
    ),
    AdminCall("changes", "GET", "api/changes", "read", "List what operators changed, newest first.", answers.CHANGES),
    AdminCall(
        "usage_history",
        "GET",
        "api/ledger/usage",
        "read",
        "Read what a client has used by day or month, from the usage ledger.",
        answers.USAGE_HISTORY,
        (CLIENT, SINCE, UNTIL, SPAN, RULE, ZONE),
        example={"client": "user:42", "since": "2026-11-01"},
    ),
    AdminCall(
        "ledger_totals",
        "GET",
        "api/ledger/totals",
        "read",
        "Read what all clients have used by hour, day or month, from the usage ledger.",
        answers.LEDGER_TOTALS,
        (SINCE, UNTIL, SPAN, ZONE),
        example={"since": "2026-11-01", "until": "2026-11-04"},
    ),
    AdminCall(
        "ledger_top",
        "GET",
        "api/ledger/top",
        "read",
        "List the clients with the most units, denials or overage, as digests.",
        answers.LEDGER_TOP,
        (
            SINCE,
            UNTIL,
            CallField("by", "measure", "What counts: units, denied or overage. By default units."),
            CallField("most", "most", "How many clients. By default 20."),
            NAMES,
        ),
        example={"since": "2026-11-01", "by": "denied"},
    ),
    AdminCall(
        "ledger_denials",
        "GET",
        "api/ledger/denials",
        "read",
        "Read the denial rate of each rule, from the usage ledger.",
        answers.LEDGER_DENIALS,
        (SINCE, UNTIL),
        example={"since": "2026-11-01"},
    ),
    AdminCall(
        "ledger_overage",
        "GET",
        "api/ledger/overage",
        "read",
        "Read the overage of a month for billing, by client and rule.",
        answers.LEDGER_OVERAGE,
        (CallField("month", "month", "A month like 2026-11. By default the current one."), ZONE, NAMES),
        example={"month": "2026-11"},
    ),
    AdminCall(
        "ledger_audit",
        "GET",
        "api/ledger/audit",
        "read",
        "List all that operators ever changed, newest first, from the usage ledger.",
        answers.LEDGER_AUDIT,
        (
            CallField("since", "instant", "The first instant. Without it, from the beginning."),
            UNTIL,
            CallField("most", "most", "How many changes. By default 100."),
        ),
        example={"since": "2026-11-01"},
    ),
    AdminCall("policy", "GET", "api/policy", "read", "Tell where the policy comes from, and its text.", answers.POLICY),
    AdminCall(
        "check_policy",
        "POST",
        "api/policy/check",
        "read",
        "Say what a new policy would change. Nothing is changed.",
        answers.POLICY_CHECK,
        (
            CallField(
                "text",
                "text",
                "The text of a policy; it takes the role write. Without it, the file or the URL is read again.",
                role="write",  # it may be long, and is worked on in a process that decides
            ),
            CallField("format", "format", "The format of the text."),
        ),
        example={"text": "rules: [{name: all, limits: 100/minute}]", "format": "yaml"},
    ),
    AdminCall(
        "reload_policy",
        "POST",
        "api/policy/reload",
        "write",
        "Read the policy again, and put it in force.",
        answers.POLICY_CHECK,
    ),
    AdminCall("health", "GET", "api/health", "read", "Tell whether the limiter works, and why not.", answers.HEALTH),
    AdminCall("openapi", "GET", "openapi.json", "read", "Describe these calls: the OpenAPI document.", answers.OPENAPI),
)
OF_SITE = ("session", "sign_in", "sign_out", "live", "openapi")  # the site answers these itself
_CHANGING = frozenset(call.name for call in CALLS if call.role == "write")


def is_audited(name: str, arguments: Mapping[str, Any]) -> bool:
    """Return True if a call belongs into the audit log: it may change something, or it shows the names of clients."""
    return name in _CHANGING or bool(arguments.get("names"))


def routes() -> dict[str, dict[str, AdminCall]]:
    """Return the calls by path and method."""
    found: dict[str, dict[str, AdminCall]] = {}
    for call in CALLS:
        found.setdefault(call.path, {})[call.method] = call
    return found
