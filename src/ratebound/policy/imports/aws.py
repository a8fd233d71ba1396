"""The importer for AWS API Gateway: usage plans, from the JSON that `aws apigateway get-usage-plans` prints.

A usage plan is a tier. Its throttle and its quota count each API key, over all APIs of the plan. The throttle of a
method counts as well, so methods have rules of their own. API Gateway routes a request to the most specific resource: a
literal segment before `{name}`, that before `{proxy+}`, and a method before ANY. Rules come in that order, and are
`final` where a later one would match too.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from ratebound.errors import InvalidLimit
from ratebound.limit import MAX_COUNT, MAX_PERIOD, UNITS
from ratebound.notation import parse_limit
from ratebound.policy.imports.draft import Draft, Imported, period_text
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.path import PARAMETER
from ratebound.policy.problem import Place, PolicyError, Problem, Problems, shown

PLANS = "aws apigateway get-usage-plans --output json"
KEYS = "aws apigateway get-usage-plan-keys --usage-plan-id ID --output json"
# AWS does not say on which day a week begins. Its older documentation of `offset` counts the days from Sunday.
PERIODS = {"DAY": "calendar-day", "WEEK": "calendar-week from sunday", "MONTH": "calendar-month"}
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
EVERYTHING = ("*/*", "/*/*")
MOST_SECONDS = MAX_PERIOD // UNITS["second"]
FINEST_RATE = 1_000_000  # a rate that would need a longer period is rounded to a fraction with this denominator
LEAST_RATE = Decimal("0.00000001")  # one request in three years
KEY_ID = re.compile("[A-Za-z0-9]{1,16}")  # ids have ten characters; the id of an old API key is the key itself


class UsagePlan(NamedTuple):
    """A usage plan as a tier, with its limits as in a policy and those of its methods."""

    tier: str
    names: tuple[str, ...]  # its id and its name
    limits: str
    methods: Mapping["ApiMethod", str]


class ApiMethod(NamedTuple):
    """A method of a resource: `/pets/{id}` and GET. An empty `verb` is every method."""

    path: str
    verb: str

    @property
    def segments(self) -> list[str]:
        """Return the segments of the path."""
        return [segment for segment in self.path.split("/") if segment]

    @property
    def precedence(self) -> tuple[list[int], bool, str, str]:
        """Return a sort key: API Gateway prefers the first method that matches in this order."""
        ranks = [2 if _is_proxy(segment) else int(_is_parameter(segment)) for segment in self.segments]
        ranks = [3] if self.path in EVERYTHING else ranks
        return ranks, not self.verb, self.path, self.verb

    @property
    def match(self) -> dict[str, Any]:
        """Return the match of a rule for this method."""
        found: dict[str, Any] = {}
        if self.path not in EVERYTHING:
            found["paths"] = ["/" + "/".join(_pattern(segment) for segment in self.segments)]
        if self.verb:
            found["methods"] = [self.verb]
        return found

    def reaches(self, other: "ApiMethod") -> bool:
        """Return True if some requests match both."""
        if self.verb and other.verb and self.verb != other.verb:
            return False
        if self.path in EVERYTHING or other.path in EVERYTHING:
            return True
        mine, theirs = self.segments, other.segments
        for one, another in zip(mine, theirs, strict=False):
            if _is_proxy(one) or _is_proxy(another):
                return True
            if one != another and not _is_parameter(one) and not _is_parameter(another):
                return False
        return len(mine) == len(theirs)


def import_aws(text: str, keys: Mapping[str, str] | None = None) -> Imported:
    """Return the policy of usage plans.

    Args:
        text: The output of `get-usage-plans`, of `get-usage-plan`, or a list of plans, in JSON.
        keys: The output of `get-usage-plan-keys` by the id or name of its plan. Clients with these keys are listed
            under their tiers.

    Raises:
        PolicyError: A text cannot be read.

    Examples:
        >>> from ratebound.policy.imports import import_aws
        >>> imported = import_aws('[{"name": "basic", "throttle": {"rateLimit": 10, "burstLimit": 20}}]')
        >>> "10/second burst 20" in imported.text
        True
    """
    return _AwsReader(_plans_in(_parse(text, PLANS)), keys or {}).imported()


class _AwsReader:
    """A reader of usage plans that writes their limits into a draft."""

    def __init__(self, plans: list[tuple[Place, Mapping[str, Any]]], keys: Mapping[str, str]) -> None:
        self.draft = Draft("AWS")
        self.problems = Problems()
        self.stages: set[tuple[str, str]] = set()
        self.plans: list[UsagePlan] = []
        for place, plan in plans:
            self._plan(place, plan)
        self.problems.check()
        self.members = self._members(keys)

    def imported(self) -> Imported:
        """Write the rules, and return the policy."""
        draft, plans = self.draft, self.plans
        if all(plan.limits == "unlimited" and not plan.methods for plan in plans):
            raise PolicyError([Problem((), "nothing to import from AWS: no usage plan has a throttle or a quota")])
        draft.identities["api-key"] = {"verify": "find_api_key"}
        draft.tiers = self.members
        limits = {plan.tier: plan.limits for plan in plans} | {"default": "deny"}
        draft.add("plans", "the limits of each API key, for all methods together", by="api-key", limits=limits)
        methods = sorted({method for plan in plans for method in plan.methods}, key=lambda method: method.precedence)
        for place, method in enumerate(methods):
            limits = {plan.tier: plan.methods[method] for plan in plans if method in plan.methods}
            draft.add(
                f"{method.verb or 'any'} {method.path}",
                match=method.match,
                by="api-key",
                limits=limits | {"default": "unlimited"},
                final=any(method.reaches(other) for other in methods[place + 1 :]),
            )
        self._add_notes()
        return draft.imported()

    def _plan(self, place: Place, plan: Mapping[str, Any]) -> None:
        names = tuple(str(plan[key]) for key in ("id", "name") if plan.get(key))
        if not names:
            self.problems.add(place, f"expected a usage plan with an id and a name, as '{PLANS}' prints it")
            return
        limits = self._throttle((*place, "throttle"), plan.get("throttle"), names[-1])
        limits += self._quota((*place, "quota"), plan.get("quota"), names[-1])
        methods: dict[ApiMethod, str] = {}
        for number, stage in enumerate(_listed(plan, "apiStages", place, self.problems)):
            self.stages.add((str(stage.get("apiId")), str(stage.get("stage"))))
            self._methods((*place, "apiStages", number), stage, names[-1], methods)
        if plan.get("productCode"):
            self.draft.lose(f"plan {names[-1]}: productCode is left out: a policy does not bill")
        if not plan.get("apiStages"):
            self.draft.lose(f"plan {names[-1]} has no API stage, so AWS refuses its keys; this policy serves them")
        text = "deny" if "deny" in limits else "; ".join(limits) or "unlimited"
        self.plans.append(UsagePlan(self._tier(names[-1]), names, text, methods))

    def _tier(self, name: str) -> str:
        """Return a valid name for the tier of a plan that no other plan has."""
        base = re.sub("[^A-Za-z0-9_]+", "-", name).strip("-_")[:28].rstrip("-_")
        if not base[:1].isalpha() or base.lower() == "default":
            base = f"plan-{base}"[:28].rstrip("-_")
        number, tier, taken = 2, base, {plan.tier.lower() for plan in self.plans}
        while tier.lower() in taken:
            tier, number = f"{base}-{number}", number + 1
        if tier != name:
            self.draft.lose(f"plan {name} is the tier {tier}")
        return tier

    def _throttle(self, place: Place, throttle: Any, plan: str) -> list[str]:
        """Return the limit of a throttle: its rate, and its burst as the size of a token bucket."""
        if throttle is None:
            return []
        if not isinstance(throttle, Mapping):
            self.problems.add(place, f"expected rateLimit and burstLimit, not {shown(throttle)}")
            return []
        rate = self._number((*place, "rateLimit"), throttle.get("rateLimit"))
        burst = self._number((*place, "burstLimit"), throttle.get("burstLimit"), whole=True)
        if rate is None:
            if burst is not None:
                self.draft.lose(f"plan {plan}: a burstLimit without a rateLimit is left out")
            return []
        if rate == 0 or burst == 0:
            self.draft.lose(f"plan {plan}: a throttle of 0 refuses every request")
            return ["deny"]
        if burst is None:
            burst = Fraction(-(-rate.numerator // rate.denominator))
            self.draft.lose(f"plan {plan}: a rateLimit without a burstLimit gets a burst of one second")
        return self._checked(place, f"{self._rate(rate, plan)} burst {burst}")

    def _rate(self, rate: Fraction, plan: str) -> str:
        """Return a rate per second as a whole count in whole seconds: 33.3 is `333/10 seconds`."""
        if rate.denominator > MOST_SECONDS or rate.numerator > MAX_COUNT:
            rounded = max(rate.limit_denominator(FINEST_RATE), Fraction(1, MOST_SECONDS))
            self.draft.lose(f"plan {plan}: the rateLimit {float(rate):g} is rounded to {rounded} per second")
            rate = rounded
        return f"{rate.numerator}/{period_text(rate.denominator)}"

    def _quota(self, place: Place, quota: Any, plan: str) -> list[str]:
        """Return the limit of a quota, which counts by days, weeks or months in UTC."""
        if quota is None:
            return []
        if not isinstance(quota, Mapping):
            self.problems.add(place, f"expected limit and period, not {shown(quota)}")
            return []
        limit = self._number((*place, "limit"), quota.get("limit"), whole=True)
        offset = self._number((*place, "offset"), quota.get("offset"), whole=True)
        period = quota.get("period")
        if not isinstance(period, str) or period not in PERIODS:
            self.problems.add((*place, "period"), f"expected {', '.join(PERIODS)}, not {_written(period)}")
            return []
        if limit is None:
            if quota.get("limit") is None:
                self.problems.add((*place, "limit"), "expected the number of requests in a period")
            return []
        if offset:
            self.draft.lose(
                f"plan {plan}: the offset of {offset} in its quota is left out: AWS subtracts it from the limit in the"
                " first period only"
            )
        if period == "WEEK":
            self.draft.lose("AWS does not say on which day the week of a quota begins; in this policy it is Sunday")
        if limit == 0:
            self.draft.lose(f"plan {plan}: a quota of 0 refuses every request")
            return ["deny"]
        return self._checked(place, f"{limit}/{PERIODS[period]}")

    def _methods(self, place: Place, stage: Mapping[str, Any], plan: str, found: dict[ApiMethod, str]) -> None:
        """Read the throttles of single methods, such as `/pets/{id}/GET`."""
        throttles = stage.get("throttle") or {}
        if not isinstance(throttles, Mapping):
            self.problems.add((*place, "throttle"), f"expected methods like '/pets/GET', not {shown(throttles)}")
            return
        for name, throttle in throttles.items():
            path, _, verb = name.rpartition("/")
            method = ApiMethod(path or "/", "" if verb in ("ANY", "*") else verb)
            if name in EVERYTHING:
                method = ApiMethod(name, "")
            elif verb not in (*METHODS, "ANY", "*"):
                self.problems.add(
                    (*place, "throttle"), f"cannot read the method {shown(name)}: expected for example '/pets/GET'"
                )
                continue
            with self.problems.at(*place, "throttle", name):
                Match(**method.match)
            limits = self._throttle((*place, "throttle", name), throttle, f"{plan}, method {name}")
            if limits and found.setdefault(method, limits[0]) != limits[0]:
                self.draft.lose(
                    f"plan {plan} throttles {name} differently in several API stages; this policy has one limit for it:"
                    f" {found[method]}"
                )

    def _number(self, place: Place, value: Any, *, whole: bool = False) -> Fraction | None:
        if value is None:
            return None
        if not isinstance(value, bool) and isinstance(value, int | Decimal) and (value == 0 or _fits(value, whole)):
            return Fraction(value)
        kind = "0, or a whole number from 1" if whole else f"0, or a number from {LEAST_RATE}"
        self.problems.add(place, f"expected {kind} to {MAX_COUNT}, not {_written(value)}")
        return None

    def _checked(self, place: Place, text: str) -> list[str]:
        try:
            parse_limit(text)
        except InvalidLimit as error:
            self.problems.add(place, f"'{text}' is not possible in a policy: {error}")
            return []
        return [text]

    def _members(self, keys: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the clients of each tier, as `api-key:ID`. The values of keys are secrets and are not among them."""
        found: dict[str, list[str]] = {plan.tier: [] for plan in self.plans}
        owners: dict[str, str] = {}
        for name, text in keys.items():
            plan = next((plan for plan in self.plans if name in plan.names), None)
            if plan is None:
                known = ", ".join(plan.names[-1] for plan in self.plans)
                raise PolicyError(
                    [Problem((), f"keys of the plan {name!r}: expected the id or name of one of {known}")]
                )
            for key in _keys_in(text, name):
                client, shown_name = str(key.get("id") or ""), str(key.get("name") or "without a name")
                if not KEY_ID.fullmatch(client) or client == key.get("value"):
                    self.draft.lose(
                        f"the API key {shown_name} of plan {name} is left out: its id may be the key itself, which is a"
                        " secret"
                    )
                elif key.get("enabled") is False:
                    self.draft.lose(f"the API key {client} of plan {name} is left out: it is not enabled")
                elif owners.setdefault(client, plan.tier) != plan.tier:
                    self.draft.lose(
                        f"the API key {client} is in several plans; in this policy it is in {owners[client]}"
                    )
                elif f"api-key:{client}" not in found[plan.tier]:
                    found[plan.tier].append(f"api-key:{client}")
        return found

    def _add_notes(self) -> None:
        lose, missing = self.draft.lose, [plan.tier for plan in self.plans if not self.members[plan.tier]]
        if missing:
            lose(
                "only AWS knows its API keys: write a function find_api_key(text) that returns"
                f' Identity("api-key", ID, TIER) for a valid key. The tiers are {", ".join(missing)}'
            )
        if any(self.members.values()):
            lose(
                "the values of API keys are not copied: write a function find_api_key(text) that returns the id of a"
                " valid key"
            )
        lose(
            "AWS refuses requests without a valid API key only where a method requires one; this policy refuses them"
            " everywhere: add paths that need none to 'exempt'"
        )
        if any(plan.methods for plan in self.plans):
            lose("paths of methods have no stage in front: if clients send one, as in /prod/pets, add it to the paths")
        if any("{" in method.path for plan in self.plans for method in plan.methods):
            lose(
                "usage plans name only the resources with a throttle of their own: in this policy /pets/mine counts as"
                " /pets/{id} unless it has one"
            )
        if len(self.stages) > 1:
            lose(
                f"the plans are for {len(self.stages)} API stages; this policy does not distinguish them: its limits"
                " apply to all requests"
            )
        lose("throttles of the account and of API stages are not part of usage plans, so they are left out")
        lose(
            "AWS counts in one place, but processes do not share memory://: with several processes, write storage:"
            " redis://…"
        )


def _parse(text: str, command: str) -> Any:
    """Return the JSON in a text, with exact numbers. Raises PolicyError with the line of an error."""
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_float=Decimal, parse_constant=_reject)
    except json.JSONDecodeError as error:
        why, line = error.msg, error.lineno
    except (ValueError, ArithmeticError, RecursionError) as error:
        why, line = str(error), None
    raise PolicyError([Problem((), f"cannot read this as JSON: {why}. Expected the output of: {command}", line)])


def _fits(value: int | Decimal, whole: bool) -> bool:
    return LEAST_RATE <= value <= MAX_COUNT and (not whole or value % 1 == 0)


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _plans_in(tree: Any) -> list[tuple[Place, Mapping[str, Any]]]:
    """Return the usage plans in the output of a command, each with its place."""
    found: list[tuple[Place, Any]]
    if isinstance(tree, Mapping) and isinstance(tree.get("items"), list):
        found = [(("items", number), plan) for number, plan in enumerate(tree["items"])]
    elif isinstance(tree, list):
        found = [((number,), plan) for number, plan in enumerate(tree)]
    else:
        found = [((), tree)]
    problems, plans = Problems(), []
    for place, plan in found:
        if not isinstance(plan, Mapping):
            problems.add(place, f"expected a usage plan, not {_written(plan)}. Expected the output of: {PLANS}")
        elif plan.keys() & {"value", "stageKeys", "enabled"} or plan.get("type") == "API_KEY":
            message = (
                f"this is an API key, not a usage plan: give keys with --keys PLAN=FILE, and the output of: {PLANS}"
            )
            raise PolicyError([Problem((), message)])
        elif not plan.keys() & {"id", "name"}:
            problems.add(place, f"expected a usage plan with an id and a name. Expected the output of: {PLANS}")
        else:
            plans.append((place, plan))
    problems.check()
    if not plans:
        raise PolicyError([Problem((), f"there is no usage plan: check the region of: {PLANS}")])
    return plans


def _keys_in(text: str, plan: str) -> list[Mapping[str, Any]]:
    """Return the API keys in the output of a command. Raises PolicyError without a line, which is that of another
    file."""
    try:
        tree = _parse(text, KEYS)
    except PolicyError as error:
        (problem,) = error.problems
        line = "" if problem.line is None else f", line {problem.line}"
        raise PolicyError([Problem((), f"keys of the plan {plan!r}{line}: {problem.message}")]) from None
    keys = tree.get("items") if isinstance(tree, Mapping) else tree
    if (
        not isinstance(keys, list)
        or not all(isinstance(key, Mapping) for key in keys)
        or any(key.keys() & {"apiStages", "throttle", "quota"} for key in keys)
    ):
        message = f"keys of the plan {plan!r}: expected a list of API keys: the output of: {KEYS}"
        raise PolicyError([Problem((), message)])
    return keys


def _listed(tree: Mapping[str, Any], key: str, place: Place, problems: Problems) -> list[Mapping[str, Any]]:
    value = tree.get(key)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return value
    problems.add((*place, key), f"expected a list of objects, not {_written(value)}")
    return []


def _written(value: Any) -> str:
    """Return a value as it is written in JSON."""
    return str(value) if isinstance(value, Decimal) else shown(value)


def _is_parameter(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def _is_proxy(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("+}")


def _pattern(segment: str) -> str:
    """Return the pattern of one segment. `{proxy+}` is one segment or more."""
    if not _is_parameter(segment):
        return segment
    if _is_proxy(segment):
        return "*/{rest*}"
    return segment if PARAMETER.fullmatch(segment) else "*"
