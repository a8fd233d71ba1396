"""Rate limits in HTTP: the client's address, header fields and rejections. No framework, no I/O."""

from ratebound.http.advice import parse_rate_limit, parse_retry_after, read_advice
from ratebound.http.client_ip import ClientAddress, Proxies
from ratebound.http.headers import Headers, expose, grows_after
from ratebound.http.prefix import Address, Networks, parse_address, prefix_key, prefix_keys
from ratebound.http.quota import Advice, Quota
from ratebound.http.rejection import Rejection, RejectionFormat, Response, is_preflight
from ratebound.http.shown import Shown

__all__ = [
    "Address",
    "Advice",
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
    "read_advice",
]
