"""Those who listen to a limiter, one file each: the log, an alert, the most limited clients; Prometheus and
OpenTelemetry in prometheus.py and otel.py, which need their extras.

None of them hands out a key unless asked to: metrics never do, the log and the top list show a digest.
"""

from ratekeeper.observe.alert import Alert, AlertListener
from ratekeeper.observe.logging import LogListener
from ratekeeper.observe.top import Limited, TopListener

__all__ = ["Alert", "AlertListener", "Limited", "LogListener", "TopListener"]
