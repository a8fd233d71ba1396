"""Policies: who is limited, where, how much, and what happens then; on requests that belong to no framework.

Reading order: request.py → rule.py → policy.py → deciding.py → engine.py. Files are read by loader.py.
"""

from ratebound.policy.canonical import canonical_name
from ratebound.policy.engine import AsyncGate, Gate
from ratebound.policy.explain import Explanation, RuleReport, explain
from ratebound.policy.loader import ANY_FUNCTION, load_policy, read_policy
from ratebound.policy.match import Match
from ratebound.policy.policy import Override, Policy
from ratebound.policy.problem import PolicyError, Problem
from ratebound.policy.reload import PolicyFile
from ratebound.policy.request import Identity, RequestView
from ratebound.policy.rule import Computed, Rule
from ratebound.policy.schema import SCHEMA_PATH
from ratebound.policy.source import Source
from ratebound.policy.verdict import Judged, Shadow, Verdict

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
