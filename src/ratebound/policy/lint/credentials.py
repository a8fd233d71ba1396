"""Warnings about rules on logins and other paths where an attacker can guess a secret."""

import re
from collections.abc import Iterator

from ratebound.policy.identity.identify import Alternatives
from ratebound.policy.lint.known_mistakes import PolicyAdvice, advice
from ratebound.policy.match.conditions import Match
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Plan, Rule
from ratebound.policy.problem import Place

LOGIN = re.compile(r"(?:login|signin|logon|authenticate)$")
SECRET = re.compile(
    r"(?:login|signin|logon|authenticate|passwords?|passwd|otp|totp|2fa|mfa|passcode)$|^(?:forgot|recover)"
)
TOKEN = re.compile(r"/(?:auth|oauth2?|connect)(?:/[^/]+)?/token/?$")
ENDING = re.compile(r"\.(?:php|aspx?|jsp|html?|json|do)$")
NOT_AN_ACCOUNT = ("address", "prefix", "agent", "fingerprint", "global", "user")  # before a login there is no user


def plans_of(rule: Rule) -> Iterator[tuple[str, Plan]]:
    """Yield the plans of a rule that can deny, each with its tier."""
    if rule.mode == "enforce":
        yield from ((tier, plan) for tier, plan in rule.plans.items() if plan != "unlimited")


def limits_something(rule: Rule) -> bool:
    """Return True if the rule enforces a limit. Metering is none."""
    return any(not limit.metered for _, plan in plans_of(rule) if isinstance(plan, tuple) for limit in plan)


def _limits_guesses(rule: Rule) -> bool:
    """Return True if the rule limits how often a client can try, or on how many accounts. Slots do not: guesses can
    come one by one."""
    plans = [plan for _, plan in plans_of(rule) if isinstance(plan, tuple)]
    return any(limit.is_distinct or (limit.takes_cost and not limit.metered) for plan in plans for limit in plan)


def kinds_of(by: Alternatives) -> set[str]:
    """Return the base names of the identities that a rule counts by, without the address that every `by` ends with."""
    listed = by[:-1] if len(by) > 1 and [kind.name for kind in by[-1]] == ["address"] else by
    return {kind.name.partition(".")[0] for parts in listed for kind in parts}


def is_login(match: Match) -> bool:
    """Return True if a path looks like a login."""
    return any(_ends(path, LOGIN) or TOKEN.search(path) for path in match.paths)


def takes_secrets(match: Match) -> bool:
    """Return True if a path looks like one that receives a password, a code or another secret."""
    return any(_ends(path, SECRET) or TOKEN.search(path) for path in match.paths)


def _ends(path: str, word: re.Pattern[str]) -> bool:
    segments = [segment for segment in path.lower().split("/") if segment and "*" not in segment]
    if not segments:
        return False
    return word.search(re.sub("[-_.]", "", ENDING.sub("", segments[-1]))) is not None


def check_credentials(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield the warnings about rules on logins and other paths that receive secrets."""
    yield from _login_keys(policy)
    for place, rule in enumerate(policy.rules):
        if not takes_secrets(rule.match) or not limits_something(rule):
            continue
        by = policy.rule_by[rule.name]
        for tier, plan in plans_of(rule):
            limits = plan if isinstance(plan, tuple) else ()
            fixed = [
                limit.text for limit in limits if limit.algorithm in ("fixed-window", "calendar") and not limit.metered
            ]
            if fixed:
                at: Place = ("rules", place, "limits", *([tier] if len(rule.plans) > 1 else []))
                wrong = f"rule {rule.name!r} uses a fixed window: {' and '.join(fixed)}"
                yield advice("fixed-window-on-credentials", at, wrong)
        if (rule.failure or policy.failure) == "open":
            where: Place = ("rules", place, "failure") if rule.failure else ("failure",)
            wrong = f"rule {rule.name!r} allows every request while the storage is unavailable"
            yield advice("open-on-login", where, wrong)
        sent = kinds_of(by) & {"agent", "fingerprint"}
        if sent:
            what = "fingerprint" if "fingerprint" in sent else "user agent"
            yield advice("agent-on-credentials", ("rules", place, "by"), f"rule {rule.name!r} counts by {what}")


def _login_keys(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield warnings if no rule on a login counts by account, or none by address. One rule of each is enough."""
    logins = [
        (place, rule) for place, rule in enumerate(policy.rules) if is_login(rule.match) and _limits_guesses(rule)
    ]
    everywhere = [rule for rule in policy.rules if not rule.match.paths and not rule.default and _limits_guesses(rule)]
    if not logins:
        return
    account = address = False
    for rule in [rule for _, rule in logins] + everywhere:
        kinds = kinds_of(policy.rule_by[rule.name])
        account = account or (rule not in everywhere and any(kind not in NOT_AN_ACCOUNT for kind in kinds))
        address = address or kinds <= {"address", "prefix", "agent", "fingerprint", "user"}
    place, rule = logins[0]
    if not account:
        yield advice(
            "login-without-account", ("rules", place), f"no rule on the login {rule.match.paths[0]} counts by account"
        )
    if not address:
        yield advice(
            "login-without-address", ("rules", place), f"no rule on the login {rule.match.paths[0]} counts by address"
        )
