"""Only failed logins count: charge before, give back after a success. No race in between."""

from ratebound import Limiter

limiter = Limiter("5/15 minutes as login")


def log_in(user: str, password: str) -> str:
    decision = limiter.hit(f"login:{user}")
    if not decision:
        return f"too many attempts, retry in {decision.retry_after:.0f} s"
    if password == "correct horse":
        limiter.settle(decision, cost=0)
        return "welcome"
    return f"wrong, {decision.remaining} attempts left"


for password in ["correct horse"] * 10 + ["guess"] * 6 + ["correct horse"]:
    print(log_in("ann", password))
