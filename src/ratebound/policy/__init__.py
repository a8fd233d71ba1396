"""Policies: which clients are limited, on which requests, by how much. Nothing here depends on a web framework.

Reading order: match/request.py → model/rule.py → model/policy.py → runtime/general_path.py → runtime/gate.py.
load/loader.py reads policy files.
"""

from ratebound.policy.identity.source import Source
from ratebound.policy.identity.user_name import canonical_name
from ratebound.policy.load.loader import ANY_FUNCTION, load_policy, read_policy
from ratebound.policy.load.url_text import FetchError
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.model.descriptor_rule import DescriptorRule, EntryMatch
from ratebound.policy.model.penalty import Penalty
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import Computed, Rule
from ratebound.policy.problem import PolicyError, Problem
from ratebound.policy.runtime.explain import Explanation, RuleReport, explain
from ratebound.policy.runtime.gate import AsyncGate, Gate
from ratebound.policy.runtime.operator_blocks import Block
from ratebound.policy.runtime.operator_documents import Change
from ratebound.policy.runtime.operator_overrides import ClientOverride
from ratebound.policy.runtime.operator_switches import RuleSwitch
from ratebound.policy.runtime.policy_changes import PolicyChange, described_changes
from ratebound.policy.runtime.policy_url import PolicyUrl
from ratebound.policy.runtime.reload import PolicyFile
from ratebound.policy.runtime.verdict import Judged, Shadow, Verdict
from ratebound.policy.schema import SCHEMA_PATH

__all__ = [
    "ANY_FUNCTION",
    "SCHEMA_PATH",
    "AsyncGate",
    "Block",
    "Change",
    "ClientOverride",
    "Computed",
    "DescriptorRule",
    "EntryMatch",
    "Explanation",
    "FetchError",
    "Gate",
    "Identity",
    "Judged",
    "Match",
    "Override",
    "Penalty",
    "Policy",
    "PolicyChange",
    "PolicyError",
    "PolicyFile",
    "PolicyUrl",
    "Problem",
    "RequestView",
    "Rule",
    "RuleReport",
    "RuleSwitch",
    "Shadow",
    "Source",
    "Verdict",
    "canonical_name",
    "described_changes",
    "explain",
    "load_policy",
    "read_policy",
]
