"""The audit log: one line for each call of an operator that may have changed something.

The logger is `ratebound.audit`. A record has the fields `ratebound_by`, `ratebound_action`, `ratebound_arguments` and
`ratebound_status`, which the service writes as fields of its JSON lines. The message is one line, whatever clients and
operators call themselves.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from ratebound.admin.calls import Operator, is_audited

log = logging.getLogger("ratebound.audit")

LONGEST = 200  # characters of one argument: a policy's text is not written out


def log_call(name: str, arguments: Mapping[str, Any], operator: Operator, status: int = 200) -> None:
    """Log a call, unless it only reads. A status of 500 or more says that it may have been carried out."""
    if not is_audited(name, arguments) or 400 <= status < 500:
        return
    shown = {key: _cut(value) for key, value in arguments.items()}
    unsure = "" if status < 500 else f" ended with {status}, and may have been carried out"
    log.info(
        "%s: %s %s%s",
        operator.name or "an operator",
        name,
        json.dumps(shown, default=str),
        unsure,
        extra={
            "ratebound_by": operator.name,
            "ratebound_action": name,
            "ratebound_arguments": shown,
            "ratebound_status": status,
        },
    )


def _cut(value: Any) -> Any:
    return f"{value[:LONGEST]}…" if isinstance(value, str) and len(value) > LONGEST else value
