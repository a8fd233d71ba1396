"""Policies: who is limited, where, how much, and what happens then; on requests that belong to no framework.

Reading order: request.py → rule.py → policy.py → general_path.py → gate.py. Files are read by loader.py.
"""

from ratebound.policy.identity.source import Source
from ratebound.policy.identity.user_name import canonical_name
from ratebound.policy.load.loader import ANY_FUNCTION, load_policy, read_policy
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import Computed, Rule
from ratebound.policy.problem import PolicyError, Problem
from ratebound.policy.runtime.explain import Explanation, RuleReport, explain
from ratebound.policy.runtime.gate import AsyncGate, Gate
from ratebound.policy.runtime.reload import PolicyFile
from ratebound.policy.runtime.verdict import Judged, Shadow, Verdict
from ratebound.policy.schema import SCHEMA_PATH

__all__ = [
    "ANY_FUNCTION",
    "SCHEMA_PATH",
    "AsyncGate",
    "Computed",
    "Explanation",
    "Gate",
    "Identity",
    "Judged",
    "Match",
    "Override",
    "Policy",
    "PolicyError",
    "PolicyFile",
    "Problem",
    "RequestView",
    "Rule",
    "RuleReport",
    "Shadow",
    "Source",
    "Verdict",
    "canonical_name",
    "explain",
    "load_policy",
    "read_policy",
]
