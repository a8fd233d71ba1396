"""The response to a verdict, for callers that answer the client elsewhere: other programs, and proxies."""

from ratebound.decision import Decision
from ratebound.http import Response
from ratebound.policy import RequestView, Verdict
from ratebound.policy.runtime.verdict import Shadow
from ratebound.web.passed import joined_decision, passed_headers
from ratebound.web.rejected import rejection_of


def verdict_response(verdict: Verdict, view: RequestView) -> Response:
    """Return what to answer the client: the rejection, or for a request that may go ahead the headers to add.

    Then the status is 200, and there is no body.
    """
    if not verdict.allowed:
        rejected = rejection_of(verdict, view, {})
        return Response(rejected.status, rejected.headers, rejected.body)
    decision = told_decision(verdict)
    return Response(200, [] if decision is None else passed_headers(verdict, decision, view.is_scripted), b"")


def told_decision(verdict: Verdict) -> Decision | None:
    """Return the decision to tell the caller: the one that denies, or those of both stages as one; None if no limit
    was asked."""
    earlier = verdict.earlier
    if earlier is None or not verdict.allowed:
        return verdict.decision
    return joined_decision(earlier.decision, verdict.decision)


def shadows_of(verdict: Verdict) -> list[Shadow]:
    """Return what rules in shadow would have decided, at both stages."""
    earlier = verdict.earlier
    return [*(() if earlier is None else earlier.shadows), *verdict.shadows]
