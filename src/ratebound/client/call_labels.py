"""Labels and buckets of the metrics of calls, shared by Prometheus and OpenTelemetry. Labels are bounded in number."""

from typing import Final

from ratebound.client.call_events import Attempted
from ratebound.observe.label import checked_most, label_of

WAITS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
REASONS: Final = 50


class CallLabels:
    """The labels in use: the first `max_origins` origins and 50 reasons; the rest are "other"."""

    def __init__(self, max_origins: int) -> None:
        self._most = checked_most("max_origins", max_origins)
        self._origins: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def origin(self, origin: str) -> str:
        """Return the label of an origin."""
        return label_of(origin or "unknown", self._origins, self._most, str)

    def reason(self, reason: str) -> str:
        """Return the label of the reason of a retry."""
        return label_of(reason, self._reasons, REASONS, str)


def result_of(event: Attempted) -> str:
    """Return the label of an attempt's result: "429", another class of statuses like "2xx", or "error"."""
    if not event.status:
        return "error"
    return "429" if event.status == 429 else f"{event.status // 100}xx"
