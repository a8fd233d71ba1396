"""Settings: one table for options, environment variables and the settings file."""

from pathlib import Path

import pytest

from ratebound.service.settings import SETTINGS, Listen, SettingsError, read_listen, read_settings

TOKEN = "0123456789abcdef0123"


def mistakes(options: dict[str, str], environ: dict[str, str] | None = None, file: str | None = None) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        read_settings(options, environ=environ or {}, file=file)
    return list(raised.value.mistakes)


def test_without_any_setting_everything_is_on_loopback() -> None:
    found = read_settings({}, environ={})
    assert {name: str(listen) for name, listen in found.listens.items()} == {
        "http": "127.0.0.1:4290",
        "grpc": "127.0.0.1:4291",
        "resp": "127.0.0.1:4292",
        "admin": "127.0.0.1:4293",
    }
    assert all(listen.is_local for listen in found.listens.values())
    assert found.workers == 1


def test_an_option_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.toml"
    file.write_text('workers = 2\ngrace = 3\nlog_level = "error"\n')
    environ = {"RATEBOUND_WORKERS": "3", "RATEBOUND_GRACE": "4", "RATEBOUND_SETTINGS": str(file)}
    found = read_settings({"workers": "5"}, environ=environ)
    assert (found.workers, found.grace, found.log_level, found.log_format) == (5, 4.0, "error", "text")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.toml", 'http = "off"\nworkers = 2\nnegative_hits = true\ntrusted_proxies = ["10.0.0.0/8", "unix"]\n'),
        ("s.yaml", "http: 'off'\nworkers: 2\nnegative_hits: true\ntrusted_proxies: [10.0.0.0/8, unix]\n"),
        ("s.json", '{"http": "off", "workers": 2, "negative_hits": true, "trusted_proxies": ["10.0.0.0/8", "unix"]}'),
    ],
)
def test_a_settings_file_may_be_toml_yaml_or_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = read_settings({}, environ={}, file=str(tmp_path / name))
    assert (found.http, found.workers, found.negative_hits) == (None, 2, True)
    assert found.trusted_proxies == ("10.0.0.0/8", "unix")


def test_all_mistakes_are_reported_at_once_with_their_sources(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("grace: soon\nworker: 3\nlog_format: {a: 1}\n")
    found = mistakes({"http": "nowhere"}, {"RATEBOUND_WORKERS": "many"}, str(file))
    assert [one.partition(" ")[0] for one in found] == [
        f"{file}:2:",
        f"{file}:3:",
        "option",
        "environment",
        f"{file}:1:",
    ]
    assert "worker: there is no such setting" in found[0]
    assert found[3] == "environment variable RATEBOUND_WORKERS: expected a whole number from 1 to 512, not 'many'"
    assert found[4] == f"{file}:1: grace: expected seconds from 0 to 3600, not 'soon'"


@pytest.mark.parametrize(
    ("name", "text"), [("s.yaml", "a: 1\nb: ["), ("s.toml", "a = 1\nb =\n"), ("s.json", '{"a": 1,\n}')]
)
def test_a_settings_file_that_cannot_be_parsed_is_refused_with_the_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (found,) = mistakes({}, file=str(tmp_path / name))
    assert found.startswith(f"{tmp_path / name}:2: cannot read this as ")


@pytest.mark.parametrize("name", ["policy", "token_file", "secret_file", "storage", "tokens", "http"])
def test_an_empty_text_is_refused_and_an_empty_variable_is_not_set(name: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{name}: ''\n")
    assert mistakes({name: ""})[0].startswith("option --")
    assert mistakes({}, file=str(tmp_path / "s.yaml"))[0].startswith(f"{tmp_path / 's.yaml'}:1: {name}: expected ")
    variable = f"RATEBOUND_{name.upper()}"
    assert mistakes({}, {variable: " "})[0].startswith(f"environment variable {variable}: expected ")
    assert read_settings({}, environ={variable: ""})
    assert mistakes({}, {"RATEBOUND_TOKENS": ","}) == [
        "environment variable RATEBOUND_TOKENS: expected at least one token"
    ]


def test_tokens_without_a_token_are_refused() -> None:
    (found,) = mistakes({}, {"RATEBOUND_TOKENS": ","})
    assert found == "environment variable RATEBOUND_TOKENS: expected at least one token"


def test_no_proxy_may_be_trusted(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("trusted_proxies: []\n")
    assert read_settings({}, environ={}, file=str(tmp_path / "s.yaml")).trusted_proxies == ()


@pytest.mark.parametrize(
    "url",
    ["redis://h?secret=abc", "redis+sentinel://h:1/s?sentinel_password=abc", "redis://a:b@h", "postgresql://a:b@h/d"],
)
def test_a_storage_with_a_secret_is_no_option(url: str) -> None:
    assert "option --storage: every user of this host can read options" in mistakes({"storage": url})[-1]


def test_a_storage_with_a_user_and_no_password_is_an_option() -> None:
    assert read_settings({"storage": "postgresql://user@h:5432/d"}, environ={}).storage == "postgresql://user@h:5432/d"


@pytest.mark.parametrize("url", ["postgresql://a:b@h/d", "sqlite:///a.db?secret=abc"])
def test_a_ledger_with_a_secret_is_no_option(url: str) -> None:
    given = {"ledger": url, "ledger_clients": "name"}
    assert "option --ledger: every user of this host can read options" in mistakes(given)[-1]


def test_the_ledger_has_settings_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    given = {"ledger": "sqlite:///usage.db", "ledger_secret_file": str(tmp_path / "secret"), "ledger_keep": "400 days"}
    found = read_settings(given, environ={"RATEBOUND_LEDGER_BUCKET": "15 minutes"}).ledger
    assert found is not None
    assert (found.url, found.clients, found.secret) == (given["ledger"], "digest", "0123456789abcdef0123456789abcdef")
    assert (found.every, found.bucket, found.keep) == (5.0, "15 minutes", "400 days")
    assert str(found.secret) not in repr(found)
    assert read_settings({}, environ={}).ledger is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ledger": "sqlite:///usage.db"}, "clients are written as digests, which need a secret"),
        ({"ledger": "redis://localhost"}, "expected sqlite:///usage.db or postgresql://HOST/DATABASE"),
        ({"ledger": "memory://"}, "expected sqlite:///usage.db or postgresql://HOST/DATABASE"),
        ({"ledger_bucket": "2 hours"}, "expected one of 1 minute, 5 minutes, 15 minutes, 1 hour, 1 day"),
        ({"ledger_keep": "long"}, "expected"),
        ({"ledger_keep": "5 minutes"}, "expected at least a day"),
        ({"ledger_every": "0"}, "expected seconds from 0.1 to 3600"),
        ({"ledger_clients": "both"}, "expected one of digest, name"),
    ],
)
def test_mistakes_about_the_ledger_are_reported(given: dict[str, str], expected: str) -> None:
    (found,) = mistakes(given)
    assert found.startswith("option --ledger")
    assert expected in found


@pytest.mark.parametrize("name", ["missing.toml", "broken.yaml", "s.ini", "list.json"])
def test_a_settings_file_that_cannot_be_used_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "s.ini").write_text("")
    (tmp_path / "list.json").write_text("[1]")
    (found,) = mistakes({}, file=str(tmp_path / name))
    assert found.startswith(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", None),
        ("OFF", None),
        ("8080", Listen("127.0.0.1", 8080)),
        ("10.1.2.3:80", Listen("10.1.2.3", 80)),
        ("[::1]:80", Listen("::1", 80)),
        ("localhost:0", Listen("localhost", 0)),
        ("unix:/run/rb.sock", Listen(path="/run/rb.sock")),
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_path(text: str, expected: Listen | None) -> None:
    assert read_listen(text) == expected


@pytest.mark.parametrize("text", ["", "a", "host:", "1:2:3", "::1:80", "[::g]:1", "127.0.0.1:65536", "unix:rb"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        read_listen(text)


def test_a_port_alone_with_a_colon_is_on_all_addresses() -> None:
    found = read_listen(":8080")
    assert found is not None
    assert not found.is_local


@pytest.mark.parametrize("name", ["http", "grpc", "resp"])
@pytest.mark.parametrize("text", [":8080", "0.0.0.0:8080", "[::]:8080", "10.0.0.1:8080", "example.org:8080"])
def test_off_loopback_a_listener_without_tokens_is_refused(name: str, text: str) -> None:
    (found,) = mistakes({name: text})
    assert found.startswith(f"option --{name}: ")
    assert "RATEBOUND_TOKENS or --token-file" in found
    assert read_settings({name: text}, environ={"RATEBOUND_TOKENS": TOKEN}).tokens == (TOKEN,)


def test_off_loopback_the_control_plane_needs_tokens_of_its_own(tmp_path: Path) -> None:
    (found,) = mistakes({"admin": ":1"}, {"RATEBOUND_TOKENS": TOKEN})
    assert "RATEBOUND_ADMIN_TOKENS or --admin-token-file" in found
    (tmp_path / "tokens").write_text(f"{TOKEN}\nanother-token-of-16\n")
    given = {"admin": ":1", "admin_token_file": str(tmp_path / "tokens")}
    expected = (("admin", "write", TOKEN), ("admin", "write", "another-token-of-16"))
    assert read_settings(given, environ={}).admin_tokens == expected
    assert read_settings({"admin": ":1"}, environ={"RATEBOUND_ADMIN_READ_TOKENS": TOKEN})


def test_a_token_of_an_operator_has_a_role_and_may_have_a_name(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("grafana=a-token-of-grafana\nc29tZXRoaW5nIGVsc2U==\n")
    environ = {"RATEBOUND_ADMIN_TOKENS": f"ann@example.org={TOKEN} bob=the-token=of-bob-42"}
    found = read_settings({"admin_read_token_file": str(tmp_path / "tokens")}, environ=environ).admin_tokens
    assert found == (
        ("ann@example.org", "write", TOKEN),
        ("bob", "write", "the-token=of-bob-42"),
        ("grafana", "read", "a-token-of-grafana"),
        ("reader", "read", "c29tZXRoaW5nIGVsc2U=="),
    )
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a-name-of-16-or-more=short", "a token must have at least 16"),
        (f"-ann={TOKEN}", "the name in NAME=TOKEN must have 1 to 64 letters"),
        (f"={TOKEN}", "the name in NAME=TOKEN must have 1 to 64 letters"),
        (f"{'a' * 65}={TOKEN}", "the name in NAME=TOKEN must have 1 to 64 letters"),
    ],
)
def test_a_token_of_an_operator_that_cannot_be_used_is_refused(text: str, expected: str) -> None:
    (found,) = mistakes({}, {"RATEBOUND_ADMIN_TOKENS": text})
    assert found.startswith(f"environment variable RATEBOUND_ADMIN_TOKENS: {expected}")
    assert TOKEN not in found


@pytest.mark.parametrize("other", [("RATEBOUND_ADMIN_READ_TOKENS", "ann"), ("RATEBOUND_ADMIN_TOKENS", "bob")])
def test_a_token_is_of_one_operator_and_has_one_role(other: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"ann={TOKEN}")
    given, (variable, name) = {"admin_token_file": str(tmp_path / "tokens")}, other
    (found,) = mistakes(given, {variable: f"{name}={TOKEN}"})
    assert found.startswith("admin_tokens and admin_read_tokens: two operators or two roles have the same token")
    same = read_settings(given, environ={"RATEBOUND_ADMIN_TOKENS": f"ann={TOKEN}"})
    assert same.admin_tokens == (("ann", "write", TOKEN),)


def test_a_secret_is_in_no_message_and_has_no_option(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("short-secret")
    given = {"token_file": str(tmp_path / "tokens"), "storage": "redis://:pass-word@localhost"}
    environ = {"RATEBOUND_TOKENS": "too-short", "RATEBOUND_SECRET": "short-as-well", "RATEBOUND_ADMIN_TOKENS": "no no"}
    found = mistakes(given, environ)
    assert len(found) == 5
    for secret in ("short-secret", "too-short", "short-as-well", "pass-word", "'no"):
        assert not [one for one in found if secret in one]
    assert {setting.name for setting in SETTINGS if setting.is_secret} == {
        "tokens",
        "admin_tokens",
        "admin_read_tokens",
        "ledger_secret",
        "secret",
    }
    assert "pass-word" not in repr(read_settings({}, environ={"RATEBOUND_STORAGE": "redis://:pass-word@localhost"}))


def test_several_secrets_rotate(tmp_path: Path) -> None:
    new, old = "n" * 32, "o" * 32
    (tmp_path / "secrets").write_text(f"{new}\n{old}\n")
    found = read_settings({"secret_file": str(tmp_path / "secrets")}, environ={})
    assert found.secrets == (new.encode(), old.encode())


def test_memory_is_refused_for_several_workers() -> None:
    (found,) = mistakes({"storage": "memory://", "workers": "2"})
    assert found.startswith("option --storage: 'memory://' is not shared between 2 workers")
    assert read_settings({"storage": "memory://"}, environ={}).storage == "memory://"


@pytest.mark.parametrize("url", ["ftp://x", "redis://localhost:x", "shm://a/b", "memory://x"])
def test_a_storage_that_does_not_exist_is_refused(url: str) -> None:
    (found,) = mistakes({"storage": url})
    assert found.startswith("option --storage: ")


def test_tls_needs_both_files() -> None:
    assert mistakes({"tls_cert": "a"}) == ["option --tls-cert: tls_key is missing: TLS needs both"]
    assert mistakes({"tls_key": "a"}) == ["option --tls-key: tls_cert is missing: TLS needs both"]


def test_nothing_to_serve_is_a_mistake() -> None:
    assert mistakes({"http": "off", "grpc": "off", "resp": "off"}) == [
        "http, grpc and resp are all off: nothing would be served"
    ]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_can_be_read(setting: object) -> None:
    assert read_settings({setting.name: setting.default} if setting.default else {}, environ={})  # type: ignore[attr-defined]


def test_the_documentation_has_every_setting_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "service.md").read_text()
    shown = [f"| `{one.name}` | {f'`{one.default}`' if one.default else ''} | {one.help} |" for one in SETTINGS]
    assert [line for line in shown if line not in page.splitlines()] == []
    assert page.count("\n| `") >= len(SETTINGS)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ("10.0.0.1/8", "did you mean '10.0.0.0/8'?"),
        ("0.0.0.0/0", "name the addresses of your proxies"),
        ("unix proxy.example", "cannot read the range 'proxy.example'"),
    ],
)
def test_ranges_that_the_check_endpoint_would_refuse_are_refused_at_the_start(ranges: str, expected: str) -> None:
    (found,) = mistakes({"trusted_proxies": ranges})
    assert found.startswith("option --trusted-proxies: ")
    assert expected in found
    assert "hops" not in found
