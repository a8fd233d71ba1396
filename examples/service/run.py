"""Serve the example policy over HTTP, gRPC and RESP, and show how to look and how to ask.

PORT=5000 takes 5000 to 5003. TRAFFIC=no leaves out the requests of made-up clients.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratebound.errors import RateboundError
from ratebound.service.listening import StartError, address_of
from ratebound.service.settings import read_settings
from ratebound.service.supervisor import Supervisor

HERE = Path(__file__).parent
LOOK = """
The dashboard{traffic}: {dashboard}

Ratebound serves examples/service/policy.yaml: HTTP on {http}, gRPC on {grpc},
RESP on {resp}, the control plane on {admin}. In another terminal:

  # the policy decides a described request
  curl -s {http}/v1/decide -H 'Content-Type: application/json' \\
    -d '{{"method": "POST", "path": "/login", "address": "203.0.113.7"}}'
  {ask} http decide --to {http_at} --method POST --path /login --address 203.0.113.7

  # limits of your own: the third one is denied
  curl -s {http}/v1/hit -H 'Content-Type: application/json' -d '{{"key": "user:42", "limits": "2/minute"}}'
  {ask} http hit --to {http_at} user:42 "2/minute"
  {ask} resp --to {resp_at} hit user:42 "2/minute"

  # as redis-cell: a burst of 15, then 30 in 60 seconds
  {ask} resp --to {resp_at} throttle user:43 15 30 60

  # as Envoy asks
  {ask} grpc --to {grpc_at} edge remote_address=203.0.113.7

  # as a proxy asks: nginx, Traefik, Caddy, HAProxy, Envoy
  curl -i {http}/v1/check/search/shoes -H 'X-Forwarded-For: 203.0.113.7'

  # is it ready? what has it decided?
  curl -s {admin}/readyz
  curl -s {admin}/metrics | grep ^ratebound_decisions_total

  # what the dashboard shows, for programs and in a terminal
  curl -s {admin}/api/figures -H 'Authorization: Bearer {token}'
  RATEBOUND_ADMIN_TOKEN={token} .venv/bin/ratebound top --admin {admin} --once

  # what clients have used this month; with --output report.html as a page with pictures
  .venv/bin/ratebound ledger report --ledger {ledger}

  # what operators do on the dashboard: block a client, and see who did what
  curl -s {admin}/api/blocks -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \\
    -d '{{"client": "192.0.2.66", "for": "1 minute", "reason": "scrapes"}}'
  curl -s {admin}/api/changes -H 'Authorization: Bearer {token}'

Ctrl-C ends it. Next: docs/guides/dashboard.md and docs/reference/admin-api.md for operators, docs/guides/service.md,
docs/reference/http-api.md, docs/guides/proxies.md, docs/guides/callers.md; `make api` for the library.
"""


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """Send requests to the service meanwhile, from a process of its own; none if there is no URL."""
    if not url:
        yield
        return
    command = [sys.executable, str(HERE / "traffic.py"), url]
    sending = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        sending.communicate()  # closes its input, which ends it


def main(folder: str) -> int:
    """Serve until a signal, with a usage ledger in this folder. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", default=os.environ.get("PORT", "4290"))
    port = parser.parse_args().port
    if not (port.isascii() and port.isdigit() and int(port) <= 65532):
        raise SystemExit(f"PORT={port}: expected a port up to 65532, and the three after it are taken, too")
    first = int(port)
    ports = [first + place if first else 0 for place in range(4)]
    given = {name: str(one) for name, one in zip(("http", "grpc", "resp", "admin"), ports, strict=True)}
    given |= {"ledger": f"sqlite:///{folder}/usage.db", "ledger_clients": "name", "ledger_every": "1"}
    try:
        settings = read_settings({**given, "policy": str(HERE / "policy.yaml"), "log_level": "error"})
        supervisor = Supervisor(settings)
    except StartError as error:
        raise SystemExit(f"{error}\nOr take other ports: PORT=5000 make run") from None
    except RateboundError as error:
        raise SystemExit(str(error)) from None
    urls = {name: address_of(name, bound, tls=False) for name, bound in supervisor.sockets.items()}
    at = {f"{name}_at": url.rpartition("/")[2] for name, url in urls.items()}
    has_traffic = os.environ.get("TRAFFIC", "yes") != "no"
    told = {"traffic": ", with made-up traffic" if has_traffic else "", "dashboard": supervisor.dashboard}
    told |= {"ask": ".venv/bin/ratebound ask", "token": supervisor.run_token or "TOKEN", "ledger": given["ledger"]}
    try:
        with traffic(urls["http"] if has_traffic else ""):
            print(LOOK.format(**urls, **at, **told), flush=True)
            return supervisor.run()
    except KeyboardInterrupt:  # before the supervisor takes signals
        return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ratebound-") as made:
        status = main(made)
    raise SystemExit(status)
