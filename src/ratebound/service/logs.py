"""The log of the service: lines on stderr, as text or as JSON, each with the name of its process."""

import json
import logging
import sys
import time
from typing import Any

OWN = "ratebound_"  # begins the names of fields that listeners add to a record


class ServiceFormatter(logging.Formatter):
    """A formatter of log lines. `process` is the name of this process: supervisor, worker 0, admin."""

    def __init__(self, process: str, *, as_json: bool) -> None:
        super().__init__()
        self._process = process
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if not self._as_json:
            return f"{moment} {record.levelname} {self._process}: {message}" + (f"\n{trace}" if trace else "")
        fields: dict[str, Any] = {
            "time": moment,
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": message,
        }
        fields |= {name.removeprefix(OWN): value for name, value in vars(record).items() if name.startswith(OWN)}
        if trace:
            fields["exception"] = trace
        return json.dumps(fields, default=str)


def set_up_logs(process: str, level: str, format: str) -> None:
    """Log to stderr from now on, in this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ServiceFormatter(process, as_json=format == "json"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ratebound").setLevel(level.upper())
    logging.getLogger("ratebound.audit").setLevel(logging.INFO)  # whatever else is wanted
