"""Rate limits in HTTP: the client's address, header fields and rejections. No framework, no I/O."""

from ratebound.http.advice import Quota, parse_rate_limit, parse_retry_after
from ratebound.http.client_ip import ClientAddress, Proxies
from ratebound.http.headers import Headers, expose, grows_after
from ratebound.http.prefix import Address, Networks, parse_address, prefix_key, prefix_keys
from ratebound.http.rejection import Rejection, RejectionFormat, Response, is_preflight
from ratebound.http.shown import Shown

__all__ = [
    "Address",
    "ClientAddress",
    "Headers",
    "Networks",
    "Proxies",
    "Quota",
    "Rejection",
    "RejectionFormat",
    "Response",
    "Shown",
    "expose",
    "grows_after",
    "is_preflight",
    "parse_address",
    "parse_rate_limit",
    "parse_retry_after",
    "prefix_key",
    "prefix_keys",
]
