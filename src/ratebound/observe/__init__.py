"""Listeners, one file each: the log, alerts and the most limited clients.

Prometheus and OpenTelemetry are in prometheus.py and otel.py, which need their extras. No listener shows a key unless
it is told to: metrics never do, the log and the top list show a digest.
"""

from ratebound.observe.alert import Alert, AlertListener
from ratebound.observe.logging import LogListener
from ratebound.observe.top import BlockedClient, LimitedClient, TopListener

__all__ = ["Alert", "AlertListener", "BlockedClient", "LimitedClient", "LogListener", "TopListener"]
