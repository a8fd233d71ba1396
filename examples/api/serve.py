"""Serve the example API, and show where to look. `--port 0` takes a free one."""

import argparse
import os
import socket
import sys
from contextlib import suppress

import uvicorn

LOOK = """
Ratebound's example API is at {url}; its policy is examples/api/policy.yaml. In another terminal:

  # allowed: 200, with what is left in the headers
  curl -i {url}/items/1

  # known by a key, of another tier: 100 a minute
  curl -i -H 'X-Api-Key: key-of-ann' {url}/items/1

  # a limit that is hit: 401 five times, then 429 with Retry-After
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X POST {url}/login; done
  curl -i -X POST {url}/login

  # a leaky bucket: all at once, served four a second
  for i in 1 2 3 4; do curl -s -w ' after %{{time_total}} s\\n' {url}/reports/1 & done; wait

  # a rule in shadow: it would have refused, and did not
  for i in 1 2 3 4 5; do curl -s -o /dev/null {url}/items/2; done
  curl -s {url}/metrics | grep shadow_decisions_total

  # all metrics
  curl -s {url}/metrics | grep ^ratebound_

Ctrl-C ends it. Next: README.md, docs/guides/web.md, docs/guides/policy.md, and `.venv/bin/ratebound demo`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default=os.environ.get("PORT", "8000"))
    options = parser.parse_args()
    if not (options.port.isascii() and options.port.isdigit() and int(options.port) <= 65535):
        raise SystemExit(f"PORT={options.port}: expected a port up to 65535")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, int(options.port)))
    except OSError as error:
        raise SystemExit(f"cannot listen on {options.host}:{options.port} ({error}); try PORT=8001 make api") from None
    host, port = listener.getsockname()
    print(LOOK.format(url=f"http://{host}:{port}"), flush=True)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    with suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config("app:app", log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
