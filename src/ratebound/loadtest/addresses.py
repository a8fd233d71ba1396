"""Which addresses a load test may connect to: checked once, before the first request.

Every address of every host is checked, and connections go to a checked address, not to the name. So a name that is
resolved anew, to another address, changes nothing.
"""

import asyncio
import ipaddress
import socket
from typing import NamedTuple

from ratebound.errors import RateboundError
from ratebound.loadtest.plan import LoadPlan, Origin


class LoadTestRefused(RateboundError, ValueError):
    """A load test that was not started: an address is not allowed, or cannot be found."""


class CheckedServer(NamedTuple):
    """A server that the load test may connect to."""

    origin: Origin
    address: str  # checked: an IP address, or the path of a Unix socket


async def checked_servers(plan: LoadPlan) -> dict[Origin, CheckedServer]:
    """Return the server of each origin. Raises LoadTestRefused if one is not allowed or has no address."""
    servers: dict[Origin, CheckedServer] = {}
    for target in plan.targets:
        origin = target.origin
        if origin in servers:
            continue
        if plan.unix_socket is not None:
            servers[origin] = CheckedServer(origin, plan.unix_socket)
        else:
            servers[origin] = CheckedServer(origin, await _address(origin, plan))
    return servers


async def _address(origin: Origin, plan: LoadPlan) -> str:
    found = await _resolved(origin)
    remote = [address for address in found if not is_loopback(address)]
    if remote and not plan.allow_remote:
        raise LoadTestRefused(
            f"{origin.host!r} is {remote[0]}, which is not this machine: a load test goes to loopback addresses only."
            " Allow remote servers (--allow-remote) if the server is yours"
        )
    if remote and plan.insecure:
        raise LoadTestRefused(f"certificates of {origin.host!r} must be verified: it is not on this machine")
    if any(mark.kind == "source" for mark in plan.clients.marks):
        found = [address for address in found if ":" not in address and is_loopback(address)]
        if not found:
            raise LoadTestRefused(f"source addresses need a server on 127.0.0.1: {origin.host!r} is none")
    return found[0] if len(found) == 1 else await _first_that_accepts(found, origin.port)


async def _resolved(origin: Origin) -> list[str]:
    try:
        rows = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise LoadTestRefused(f"{origin.host!r} has no address: check the name in the URL") from None
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


async def _first_that_accepts(addresses: list[str], port: int) -> str:
    """Return the first address that accepts connections, as 'localhost' may have two of which one does; else the
    first."""
    for address in addresses:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), 1.0)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return address
    return addresses[0]


def is_loopback(address: str) -> bool:
    """Return True for an address of this machine's loopback: 127.0.0.0/8 and ::1."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
