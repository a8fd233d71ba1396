"""AWS: the access logs of Application Load Balancers and of CloudFront.

https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html
https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html
"""

from collections.abc import Mapping

from ratebound.replay.format_string import LineParts, Piece, Variable, assemble
from ratebound.replay.text_format import QUOTED, Part, literal, quoted, value

CLOUDFRONT_FIELDS = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) "
    "cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken "
    "x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status "
    "fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len "
    "sc-range-start sc-range-end"
)
_CLOUDFRONT = {
    "c-ip": ("address", 0),
    "cs-method": ("method", 0),
    "cs-uri-stem": ("path", 0),
    "cs-uri-query": ("query", 0),
    "sc-status": ("status", 0),
    "x-host-header": ("host", 0),
    "cs(host)": ("host", 1),
    "cs(user-agent)": ("encoded agent", 0),
    "cs-username": ("user", 0),
    "time-taken": ("seconds", 0),  # date and time are those of the end
}
# The request has a whole URL: "GET https://api.example.com:443/users?page=2 HTTP/2.0".
_ALB_REQUEST = Part(
    r'(?:([A-Z][A-Z_-]*) [a-z]+://([^/" \n]*)([^" \n]*) [^" \n]*(?=")|' + QUOTED + ")",
    ("method", "host and port", "target"),
    fast=r'(?:([A-Z][A-Z_-]*) [a-z]+://([^/]*)([^ ]*) [^"]*|(?![A-Z])[^"]*)',
)


def alb_line() -> LineParts:
    """Return what a line of an Application Load Balancer has. Its time is when the request came."""
    parts = [
        value("=type"),
        literal(" "),
        value("=time"),
        literal(" "),
        value("=elb"),
        literal(" "),
        value("address and port"),
        literal(" "),
        value("=target"),
    ]
    for name in ("request_processing_time", "target_processing_time", "response_processing_time"):
        parts += [literal(" "), value(f"={name}", r"[^ \n]+")]
    parts += [literal(" "), value("status"), literal(" "), value("=target_status_code")]
    parts += [literal(" "), value("=received_bytes"), literal(" "), value("=sent_bytes")]
    parts += [literal(' "'), _ALB_REQUEST, literal('" '), quoted("agent")]
    parts += [literal(" "), value("=ssl_cipher"), literal(" "), value("=ssl_protocol")]
    parts += [literal(" "), value("=target_group_arn"), literal(" "), quoted("=trace_id")]
    parts += [literal(" "), quoted("=domain_name"), literal(" "), quoted("=chosen_cert_arn")]
    parts += [literal(" "), value("=matched_rule_priority"), literal(" ")]
    parts += [Part(r"([0-9TZ:.-]+)", ("iso time",)), Part(r"(?: [^\n]*)?")]
    return LineParts(parts, 1_000)


def cloudfront_line(fields: str = CLOUDFRONT_FIELDS, *, mapping: Mapping[str, str] | None = None) -> LineParts:
    """Return what a line of CloudFront has, from its header "#Fields:". Raises LogError if there is no time."""
    pieces: list[Piece] = []
    names = fields.split()
    position = 0
    while position < len(names):
        name = names[position].lower()
        if pieces:
            pieces.append("\t")
        if name == "date" and names[position + 1 : position + 2] == ["time"]:
            pieces.append(Variable("date time", "time", "iso time", 0, pattern=r"[0-9-]+\t[0-9:]+"))
            position += 1
        else:
            meaning, rank = _CLOUDFRONT.get(name, ("", 0))
            field = name[3:-1] if name.startswith("cs(") else name
            pieces.append(Variable(name, field, meaning, rank))
        position += 1
    return assemble(pieces, mapping=mapping)
