"""Requests and tokens per minute in one decision; what was not used is given back."""

from ratebound import Check, Limiter, parse_limit

REQUESTS = parse_limit("60/minute as requests")
TOKENS = parse_limit("10000/minute burst 10000 as tokens")
limiter = Limiter([REQUESTS, TOKENS])


def complete(org: str, prompt: str, most: int) -> str | None:
    decision = limiter.check([Check(org, REQUESTS), Check(org, TOKENS, cost=most)])
    if not decision:
        print(f"denied by {decision.limit.name}, retry in {decision.retry_after:.1f} s")
        return None
    answer = prompt.upper()  # the model
    settled = limiter.settle(decision, cost=[1, len(answer)])
    print(f"used {len(answer)} of {most}, {settled.outcomes[1].remaining} tokens left")
    return answer


complete("org:7", "a long question", most=9_000)
complete("org:7", "and another one", most=9_000)
complete("org:7", "too soon", most=9_990)
