"""The formats of access logs: lines as the servers write them, format strings, and detection."""

import json
from pathlib import Path

import pytest
from benchmarks.made_logs import NGINX_TIMED, WRITERS, made_requests, write_log

from ratebound.replay.entry import Entry
from ratebound.replay.log_file import LogError
from ratebound.replay.log_formats import FORMATS, WantedFields, make_format
from ratebound.replay.read_log import LogReader
from tests.replay.test_log_reader import NOON, entries_of

MILLISECOND = 1_000
WITHOUT_FIELDS = WantedFields(())


def one(line: str, format: str = "auto", **mapping: str) -> Entry:
    """Read one line, without its fields."""
    (entry,) = make_format(format, [line], WantedFields((), mapping)).read(f"{line}\n")
    return entry


def detected(line: str) -> str:
    return make_format("auto", [line], WITHOUT_FIELDS).name


def test_nginx_combined() -> None:
    line = (
        '203.0.113.9 - - [16/Nov/2026:13:00:00 +0100] "GET /search?q=a%20b HTTP/2.0" 200 612 "https://example.com/" '
        '"Mozilla/5.0 (X11; Linux x86_64)"'
    )
    expected = Entry(NOON, "203.0.113.9", "GET", "/search?q=a%20b", 200, agent="Mozilla/5.0 (X11; Linux x86_64)")
    assert one(line) == expected
    assert detected(line) == "combined"
    assert one(f'{line} "198.51.100.1" 0.003') == expected  # what sites add at the end


def test_apache_common_and_vhost_combined() -> None:
    common = '127.0.0.1 - frank [16/Nov/2026:05:00:00 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326'
    assert one(common) == Entry(NOON, "127.0.0.1", "GET", "/apache_pb.gif", 200, user="frank")
    assert detected(common) == "common"
    vhost = f'example.com:443 {common} "-" "curl/8.5.0"'
    assert one(vhost) == Entry(NOON, "127.0.0.1", "GET", "/apache_pb.gif", 200, "example.com", "frank", "curl/8.5.0")
    assert detected(vhost) == "vhost_combined"


@pytest.mark.parametrize("address", ["2001:db8::1", "2001:1234::80", "::1", "client.example.com", "unix:"])
def test_addresses_of_all_kinds_are_told_from_virtual_hosts(address: str) -> None:
    line = f'{address} - john doe [16/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-"'
    assert one(line) == Entry(NOON, address, "GET", "/", 200, user="john doe")


@pytest.mark.parametrize(
    ("request_text", "method", "target"),
    [
        ("GET / HTTP/1.1", "GET", "/"),
        ("M-SEARCH * HTTP/1.1", "M-SEARCH", "*"),
        ("GET /a b HTTP/1.1", "GET", "/a b"),
        ("GET /", "GET", "/"),
        ("GET /a\\x22b HTTP/1.1", "GET", '/a"b'),
        ('GET /a\\"b HTTP/1.1', "GET", '/a"b'),
        ("GET /%22 HTTP/1.1", "GET", "/%22"),
        ("GET /\\xD0\\xB6 HTTP/1.1", "GET", "/ж"),
        ("GET /\\x1B[31m HTTP/1.1", "GET", "/\\x1B[31m"),
        ("GET http://example.com/a HTTP/1.1", "GET", "http://example.com/a"),
        ("\\x16\\x03\\x01\\x02", "", ""),
        ("-", "", ""),
        ("", "", ""),
        ("SSH-2.0-Go", "", ""),
        ("get / HTTP/1.1", "", ""),
    ],
)
def test_a_request_line_becomes_method_and_target(request_text: str, method: str, target: str) -> None:
    line = f'192.0.2.1 - - [16/Nov/2026:12:00:00 +0000] "{request_text}" 400 0 "-" "-"'
    assert one(line) == Entry(NOON, "192.0.2.1", method, target, 400)


def test_quotes_and_backslashes_in_values() -> None:
    start = '192.0.2.1 - - [16/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5'
    assert one(f'{start} "-" "a \\"b\\" \\\\ c"').agent == 'a "b" \\ c'
    assert one(f'{start} "x\\" \\"y" "agent"').agent == "agent"
    assert one(f'{start} "-" "ends with \\\\"').agent == "ends with \\"


def test_one_line_with_an_escaped_quote_does_not_change_how_others_are_read() -> None:
    plain = '192.0.2.1 - - [16/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "r" "a"'
    quoting = plain.replace('"a"', '"a\\" \\"b"')
    entries = make_format("combined", [], WITHOUT_FIELDS).read(f"{plain}\n{quoting}\n{plain}\n")
    assert [entry.agent for entry in entries] == ["a", 'a" "b', "a"]


def test_an_nginx_log_format_with_times_in_milliseconds() -> None:
    format = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent $request_time $msec $host'
    line = '192.0.2.1 - ann [16/Nov/2026:12:00:01 +0000] "GET /a HTTP/1.1" 200 5 0.250 1794830401.125 api.example.com'
    made = make_format(format, [], WITHOUT_FIELDS)
    assert made.read(f"{line}\n") == [
        Entry(NOON + 875 * MILLISECOND, "192.0.2.1", "GET", "/a", 200, "api.example.com", "ann")
    ]
    assert made.resolution == MILLISECOND


def test_a_log_format_directive_as_it_is_in_nginx_conf() -> None:
    directive = """
    log_format main escape=default '$remote_addr|$time_iso8601|$request_method|$scheme://$host$request_uri|'
                                   '$status|"$http_user_agent"|"$http_x_forwarded_for"|$upstream_response_time rt';
    """
    line = (
        '10.0.0.1|2026-11-16T12:00:00+00:00|GET|https://example.com/a?b=c|200|"curl"|"192.0.2.7, 10.0.0.9"|0.1, 0.2 rt'
    )
    (entry,) = make_format(directive, [], WantedFields()).read(f"{line}\n")
    assert entry[:8] == (NOON, "10.0.0.1", "GET", "/a?b=c", 200, "example.com", "", "curl")
    assert entry.fields == {
        "scheme": "https",
        "x-forwarded-for": "192.0.2.7, 10.0.0.9",
        "upstream_response_time": "0.1, 0.2",
    }
    (entry,) = make_format(directive, [], WantedFields((), {"address": "x-forwarded-for"})).read(f"{line}\n")
    assert (entry.address, entry.fields) == ("10.0.0.9", None)


def test_a_log_format_that_writes_json_by_hand() -> None:
    format = '{"t":"$time_iso8601","a":"$remote_addr","r":"$request","s":$status,"u":"$http_user_agent"}'
    line = r'{"t":"2026-11-16T12:00:00+00:00","a":"192.0.2.1","r":"GET /\"a HTTP/1.1","s":200,"u":"x \"y\""}'
    assert one(line, format) == Entry(NOON, "192.0.2.1", "GET", '/"a', 200, agent='x "y"')


def test_paths_and_queries_may_be_separate_variables() -> None:
    line = "192.0.2.1 [16/Nov/2026:12:00:00 +0000] GET /a?b=c 200"
    assert one(line, "$remote_addr [$time_local] $request_method $uri$is_args$args $status").target == "/a?b=c"
    assert (
        one(line.replace("?b=c", ""), "$remote_addr [$time_local] $request_method $uri$is_args$args $status")[3] == "/a"
    )
    assert one(line, "%a %t %m %U%q %>s") == Entry(NOON, "192.0.2.1", "GET", "/a?b=c", 200)


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ('%h %l %u %t "%r" %>s %b %D', '192.0.2.1 - ann [16/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 5 90000000'),
        ('LogFormat "%a %u %{msec}t \\"%r\\" %s->%>s" x', '192.0.2.1 ann 1794830400000 "GET /a HTTP/1.1" 301->200'),
        ("%{usec}t\\t%h\\t%u\\t%m\\t%U\\t%>s", "1794830400000000\t192.0.2.1\tann\tGET\t/a\t200"),
        ('%{%Y-%m-%dT%H:%M:%S%z}t %h %u "%r" %>s %%', '2026-11-16T12:00:00+0000 192.0.2.1 ann "GET /a HTTP/1.1" 200 %'),
        ('%{begin:sec}t %{c}a %a %u "%r" %>s', '1794830400 10.0.0.1 192.0.2.1 ann "GET /a HTTP/1.1" 200'),
    ],
)
def test_an_apache_log_format_whose_time_is_the_start_of_the_request(format: str, line: str) -> None:
    assert one(line, format) == Entry(NOON, "192.0.2.1", "GET", "/a", 200, user="ann")


def test_envoy_default_and_istio() -> None:
    line = (
        '[2026-11-16T12:00:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28, 192.0.2.1" '
        '"nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"'
    )
    expected = Entry(
        NOON + 310 * MILLISECOND, "192.0.2.1", "POST", "/api/v1/locations", 204, "locations", "", "nsq2http"
    )
    assert one(line) == expected
    assert detected(line) == "envoy"
    istio = line.replace(" 204 - ", ' 204 - via_upstream - "-" ') + (
        " outbound|8000||httpbin.default.svc 10.44.1.23:3765 10.0.45.1:80 [2001:db8::1]:46520 - default"
    )
    assert one(istio) == expected._replace(address="2001:db8::1")
    assert detected(istio) == "istio"


def test_envoy_does_not_escape_quotes() -> None:
    line = '[2026-11-16T12:00:00.000Z] "GET / HTTP/1.1" 200 - 0 5 1 1 "192.0.2.1" "an "agent"" "-" "example.com" "-"'
    assert one(line) == Entry(NOON, "192.0.2.1", "GET", "/", 200, "example.com", "", 'an "agent"')


def test_an_envoy_format_string() -> None:
    format = "%START_TIME(%s.%3f)% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%"
    assert one("1794830400.250 192.0.2.1 GET /a 200", format) == Entry(
        NOON + 250 * MILLISECOND, "192.0.2.1", "GET", "/a", 200
    )


ALB = (
    "https 2026-11-16T12:00:12.186641Z app/my-lb/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 "
    '0.037 200 200 0 57 "GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 '
    "TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "
    '"Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/1" '
    '1 2026-11-16T12:00:00.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-"'
)


def test_alb_tells_when_the_request_came() -> None:
    assert one(ALB) == Entry(
        NOON + 364 * MILLISECOND, "192.168.131.39", "GET", "/a?b=c", 200, "www.example.com", "", "curl/7.46.0"
    )
    assert detected(ALB) == "alb"
    assert detected(f"{ALB} TID_dc57cebed65b444ebd6e9e2b4ae5e1a4") == "alb"


def test_alb_lines_without_a_target_or_a_request() -> None:
    failed = ALB.replace(" 10.0.0.1:80 0.086 0.048 0.037 200 200 ", " - -1 -1 -1 502 - ", 1)
    assert one(failed).status == 502
    garbage = ALB.replace("GET https://www.example.com:443/a?b=c HTTP/1.1", "- http://www.example.com:80- ")
    assert one(garbage)[1:4] == ("192.168.131.39", "", "")


def test_cloudfront_subtracts_the_time_taken_and_decodes_the_agent(tmp_path: Path) -> None:
    log = tmp_path / "E2.log"
    log.write_text(
        "#Version: 1.0\n"
        "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) "
        "cs(User-Agent) cs-uri-query cs(Cookie) x-host-header time-taken\n"
        "2026-11-16\t12:00:01\tLAX1\t2390\t192.0.2.100\tGET\td1.cloudfront.net\t/index.html\t200\t-\t"
        "Mozilla/5.0%20(Windows%20NT%2010.0)\tuser=1\t-\twww.example.com\t0.250\n"
        "2026-11-16\t12:00:02\tLAX1\t2390\t2001:db8::1\tHEAD\td1.cloudfront.net\t/\t304\t-\t-\t-\t-\twww.example.com\t0\n"
    )
    reader = LogReader([log], fields=())
    assert entries_of(reader) == [
        Entry(
            NOON + 750 * MILLISECOND,
            "192.0.2.100",
            "GET",
            "/index.html?user=1",
            200,
            "www.example.com",
            "",
            "Mozilla/5.0 (Windows NT 10.0)",
        ),
        Entry(NOON + 2_000 * MILLISECOND, "2001:db8::1", "HEAD", "/", 304, "www.example.com"),
    ]
    assert (reader.format, reader.malformed, reader.lines) == ("cloudfront", 0, 4)


CADDY = {
    "level": "info",
    "ts": 1794830400.5,
    "logger": "http.log.access.log0",
    "msg": "handled request",
    "request": {
        "remote_ip": "192.0.2.1",
        "remote_port": "41342",
        "client_ip": "198.51.100.1",
        "proto": "HTTP/2.0",
        "method": "GET",
        "host": "localhost:8080",
        "uri": "/a?b=c",
        "headers": {"User-Agent": ["curl/7.82.0"], "Authorization": ["REDACTED"], "X-Key": ["k1"]},
    },
    "bytes_read": 0,
    "user_id": "ann",
    "duration": 0.25,
    "size": 10900,
    "status": 200,
}


def test_caddy() -> None:
    line = json.dumps(CADDY)
    expected = Entry(
        NOON + 250 * MILLISECOND, "192.0.2.1", "GET", "/a?b=c", 200, "localhost:8080", "ann", "curl/7.82.0"
    )
    assert one(line) == expected
    assert detected(line) == "caddy"
    (entry,) = make_format("caddy", [line], WantedFields()).read(f"{line}\n")
    assert entry.fields is not None
    assert entry.fields["x-key"] == "k1"
    assert "authorization" not in entry.fields
    assert one(line, address="request.client_ip").address == "198.51.100.1"


def test_caddys_other_messages_are_malformed_lines_among_requests(tmp_path: Path) -> None:
    log = tmp_path / "caddy.log"
    other = '{"level":"info","ts":1794830399.5,"logger":"admin","msg":"admin endpoint started"}\n'
    log.write_text(other * 300 + f"{json.dumps(CADDY)}\n" * 3)
    reader = LogReader([log], format="caddy", fields=())
    assert len(entries_of(reader)) == 3
    assert (reader.lines, reader.malformed) == (303, 300)


def test_traefik() -> None:
    line = (
        '{"ClientAddr":"192.0.2.1:51234","ClientHost":"192.0.2.1","ClientPort":"51234","ClientUsername":"-",'
        '"DownstreamContentSize":12,"DownstreamStatus":200,"Duration":1234567,"RequestAddr":"example.com",'
        '"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","RequestProtocol":"HTTP/1.1",'
        '"StartLocal":"2026-11-16T13:00:00.5+01:00","StartUTC":"2026-11-16T12:00:00.500000000Z","level":"info","msg":"",'
        '"request_User-Agent":"curl/8","time":"2026-11-16T12:00:01Z"}'
    )
    expected = Entry(NOON + 500 * MILLISECOND, "192.0.2.1", "GET", "/a?b=c", 200, "example.com", "", "curl/8")
    assert one(line) == expected
    assert detected(line) == "traefik"
    text = '192.0.2.1 - - [16/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 12 "-" "-" 7 "web" "http://10.0.0.1" 1ms'
    assert one(text) == Entry(NOON, "192.0.2.1", "GET", "/a", 200)


@pytest.mark.parametrize(
    "line",
    [
        '{"time":"2026-11-16T12:00:00Z","remote_addr":"192.0.2.1","method":"GET","path":"/a","status":200}',
        '{"@timestamp":"2026-11-16T13:00:00.000+01:00","client_ip":"192.0.2.1:80","request":"GET /a","code":200}',
        '{"ts":1794830400,"client_ip":"192.0.2.1","verb":"GET","uri":"/a","status":"200"}',
        '{"ts":1794830400000,"ip":"192.0.2.1","method":"GET","url":"/a","status":200.0}',
        '{"timestamp":1794830400000000,"ip":"192.0.2.1","method":"GET","url":"/a","statusCode":200}',
        '{"msec":"1794830400.000","remote_addr":"192.0.2.1","request_method":"GET","request_uri":"/a","status":"200"}',
        '{"msec":"1794830401.500","request_time":"1.500","remote_addr":"192.0.2.1","request":"GET /a","code":200}',
        '{"time_local":"16/Nov/2026:12:00:00 +0000","remote_addr":"192.0.2.1","request":"GET /a","status":"200"}',
        '{"time":"2026-11-16T12:00:02Z","duration_ms":2000,"ip":"192.0.2.1","method":"GET","path":"/a","status":200}',
        '{"start_time":"2026-11-16T12:00:00.000Z","duration":9,"method":"GET","path":"/a","response_code":200,'
        '"downstream_remote_address":"192.0.2.1:5"}',
        '{"timestamp":"2026-11-16T12:00:01Z","httpRequest":{"requestMethod":"GET","requestUrl":"/a","status":200,'
        '"remoteIp":"192.0.2.1","latency":"1s"}}',
        '{"time":"2026-11-16T12:00:00Z","http.request.method":"GET","url":{"path":"/a"},"source":{"ip":"192.0.2.1"},'
        '"http":{"response":{"status_code":200}}}',
    ],
)
def test_json_lines_with_usual_names(line: str) -> None:
    assert one(line) == Entry(NOON, "192.0.2.1", "GET", "/a", 200)
    assert detected(line) == "json"


def test_json_with_a_whole_url_a_query_and_a_mapping() -> None:
    line = '{"when":1794830400,"who":"192.0.2.1","url":"https://u:p@example.com/a?b=c","method":"GET","status":200}'
    assert one(line, time="when", address="who") == Entry(NOON, "192.0.2.1", "GET", "/a?b=c", 200, "example.com")
    line = '{"ts":1794830400,"ip":"2001:db8::1","path":"/a","query":"b=c","method":"GET","status":200}'
    assert one(line) == Entry(NOON, "2001:db8::1", "GET", "/a?b=c", 200)


def test_json_has_no_lone_surrogates() -> None:
    line = '{"ts":1794830400,"path":"/\\ud800","method":"GET","status":200,"x":"\\udfff","y":"\\ud83d\\ude00"}'
    (entry,) = make_format("json", [line], WantedFields()).read(f"{line}\n")
    assert entry.target == "/\N{REPLACEMENT CHARACTER}"
    assert entry.fields is not None
    assert (entry.fields["x"], entry.fields["y"]) == ("\N{REPLACEMENT CHARACTER}", "😀")


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_what_a_server_writes_is_what_is_read(name: str, tmp_path: Path) -> None:
    log = tmp_path / name
    write_log(log, name, 3_000, rate=400)
    requests = list(made_requests(3_000, rate=400))
    reader = LogReader([log], format=NGINX_TIMED if name == "nginx" else "auto", fields=())
    entries = entries_of(reader)
    assert (reader.format, reader.lines - (name == "cloudfront") * 2, reader.malformed, reader.late) == (
        name,
        3_000,
        0,
        0,
    )
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    whole_seconds = name in ("combined", "common", "vhost_combined", "cloudfront")
    assert reader.resolution == (1_000_000 if whole_seconds else MILLISECOND)
    expected = []
    for made in requests:
        at = made.arrival
        if name == "cloudfront":
            at = int(made.end) * 1_000_000 - round(made.duration * 1000) * 1000
        elif whole_seconds:
            at = int(made.end) * 1_000_000
        expected.append((at, made.address, made.method, made.target, made.status))
    assert sorted(entry[:5] for entry in entries) == sorted(expected)
    if name not in ("combined", "common", "nginx"):
        assert {entry.host for entry in entries} == {"api.example.com"}
    if name not in ("common",):
        assert {entry.agent for entry in entries} == {made.agent for made in requests}


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        LogError, match="unknown log format 'nginxx'. Give one of: auto, vhost_combined, combined, common"
    ):
        make_format("nginxx", [], WantedFields())
    with pytest.raises(LogError, match="no known format fits. The formats are: .*cloudfront, caddy, traefik, json"):
        make_format("auto", ["hello", "world"], WantedFields())
    assert set(WRITERS) - {"nginx"} <= set(FORMATS)


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("$remote_addr $status", "the log format has no time"),
        ("$remote_addr$status [$time_local]", r"cannot tell \$remote_addr and \$status apart"),
        ('%h %{%a %d}t "%r" %>s', r"cannot read times like %\{%a %d\}t"),
        ("%START_TIME(%d)% %REQ(:PATH)%", r"cannot read times like %START_TIME\(%d\)%"),
    ],
)
def test_a_format_string_that_cannot_be_used_says_why(format: str, message: str) -> None:
    with pytest.raises(LogError, match=message):
        make_format(format, [], WantedFields())


def test_a_mapping_that_cannot_be_used_says_why() -> None:
    with pytest.raises(LogError, match="the log format has no field 'x-real-ip' for address. Its fields: "):
        make_format("combined", [], WantedFields((), {"address": "x-real-ip"}))
    with pytest.raises(LogError, match="cannot map 'colour'. Map one of: time, address"):
        make_format("json", [], WantedFields((), {"colour": "x"}))
