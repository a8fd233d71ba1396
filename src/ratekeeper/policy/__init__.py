"""Policies: who is limited, where, how much, and what happens then; on requests that belong to no framework.

Reading order: request.py → rule.py → policy.py → deciding.py → engine.py. Files are read by loader.py.
"""

from ratekeeper.policy.canonical import canonical_name
from ratekeeper.policy.engine import AsyncGate, Gate
from ratekeeper.policy.explain import Explanation, RuleReport, explain
from ratekeeper.policy.loader import ANY_FUNCTION, load_policy, read_policy
from ratekeeper.policy.match import Match
from ratekeeper.policy.policy import Override, Policy
from ratekeeper.policy.problem import PolicyError, Problem
from ratekeeper.policy.reload import PolicyFile
from ratekeeper.policy.request import Identity, RequestView
from ratekeeper.policy.rule import Computed, Rule
from ratekeeper.policy.schema import SCHEMA_PATH
from ratekeeper.policy.source import Source
from ratekeeper.policy.verdict import Judged, Shadow, Verdict

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
