"""Those who listen to a limiter, one file each: the log, an alert, the most limited clients; Prometheus and
OpenTelemetry in prometheus.py and otel.py, which need their extras.

None of them hands out a key unless asked to: metrics never do, the log and the top list show a digest.
"""

from ratebound.observe.alert import Alert, AlertListener
from ratebound.observe.logging import LogListener
from ratebound.observe.top import LimitedClient, TopListener

__all__ = ["Alert", "AlertListener", "LimitedClient", "LogListener", "TopListener"]
