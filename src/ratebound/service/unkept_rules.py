"""Warnings about rules that the check endpoint cannot apply in full: it sees no body, and no response."""

import logging
from typing import Final

from ratebound.policy import AsyncGate
from ratebound.policy.runtime.general_path import CompiledPolicy

log = logging.getLogger("ratebound.service")

SLOTS: Final = (
    "the policy may limit concurrent requests: a proxy does not tell when a request has ended, so that each slot that a"
    " check takes ends with its lease"
)
RESULTS: Final = (
    "the policy charges by result: a proxy does not tell the result of a request, so a check charges the full cost"
)
BODY: Final = "the policy reads the body of requests: a proxy does not send it, so a check sees no body"


class UnkeptRules:
    """Warns in the log about the policy of a gate, now and each time it is loaded. The gate holds it weakly."""

    def __init__(self, gate: AsyncGate) -> None:
        gate.before_new_policy(self.warn)
        self.warn(gate.current())

    def warn(self, compiled: CompiledPolicy) -> None:
        """Warn of the rules of a compiled policy that a check cannot keep."""
        if compiled.may_hold:
            log.warning(SLOTS)
        if any(rule.by_result is not None for rule in compiled.policy.rules):
            log.warning(RESULTS)
        if compiled.policy.reads_body:
            log.warning(BODY)
