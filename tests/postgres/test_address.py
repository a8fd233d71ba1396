"""URLs of PostgreSQL: libpq's options pass through, mistakes are named, and nothing secret is shown."""

import pytest

from ratebound.admin.storage_name import storage_name
from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.storage import PostgresStorage
from ratebound.storage.urls import check_storage_url


def test_a_url_names_hosts_a_login_and_options() -> None:
    address = read_url(
        "postgresql://user:p%40ss@one,[::1]:5433,%2Frun%2Fpg/api?timeout=0.5&connect_timeout=2&pool=3&secret=s"
        "&schema=limits&prepare=yes&synchronous_commit=off&sslmode=require&application_name=shop"
    )
    assert address.hosts == [("one", ""), ("::1", "5433"), ("/run/pg", "")]
    assert (address.timeout, address.connect_timeout, address.pool, address.secret) == (0.5, 2.0, 3, "s")
    assert (address.schema, address.prepare, address.synchronous_commit) == ("limits", True, "off")
    assert address.login == {
        "user": "user",
        "password": "p@ss",
        "dbname": "api",
        "sslmode": "require",
        "application_name": "shop",
        "target_session_attrs": "read-write",
    }
    assert address.table("ratebound_states") == '"limits".ratebound_states'
    assert address.url == "postgresql://one,[::1]:5433,%2Frun%2Fpg/api?schema=limits"


def test_several_hosts_mean_the_one_that_writes_unless_something_else_is_written() -> None:
    assert "target_session_attrs" not in read_url("postgresql://one/api").login
    assert read_url("postgresql://one,two/api?target_session_attrs=any").login["target_session_attrs"] == "any"


def test_a_host_may_be_an_option_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_url("postgres:///api?host=/run/postgresql&port=5433").hosts == [("/run/postgresql", "5433")]
    assert read_url("postgresql:///api?host=a,b&port=1,2").hosts == [("a", "1"), ("b", "2")]
    monkeypatch.setenv("PGHOST", "db.internal")
    monkeypatch.setenv("PGPORT", "6000")
    assert read_url("postgresql:///api").hosts == [("db.internal", "6000")]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql:host", "expected for example"),
        ("postgresql://u:hunter2@h/x?tiemout=2", "option 1 is unknown; did you mean timeout?"),
        ("postgresql://u:hunter2@h/x?xyzzy=2", "option 1 is unknown; known are timeout, connect_timeout, pool"),
        ("postgresql://u:hunter2@h/x?timeout=1&timeout=2", "option timeout is given twice"),
        ("postgresql://u:hunter2@h/x?sslmode=a&sslmode=b", "option sslmode is given twice"),
        ("postgresql://u:hunter2@h/x?timeout=soon", "timeout must be a number"),
        ("postgresql://u:hunter2@h/x?timeout=0", "timeout"),
        ("postgresql://u:hunter2@h/x?timeout=nan", "timeout"),
        ("postgresql://u:hunter2@h/x?connect_timeout=-1", "connect_timeout"),
        ("postgresql://u:hunter2@h/x?pool=0", "pool must be a whole number from 1 to 1000"),
        ("postgresql://u:hunter2@h/x?pool=1.5", "pool must be a number"),
        ("postgresql://u:hunter2@h/x?prepare=maybe", "prepare must be 'yes' or 'no'"),
        ("postgresql://u:hunter2@h/x?synchronous_commit=maybe", "synchronous_commit must be one of on, off"),
        ('postgresql://u:hunter2@h/x?schema=a"b', "schema must be the name of a schema"),
        (f"postgresql://u:hunter2@h/x?secret={'s' * 65}", "at most 64 bytes"),
        ("postgresql://u:hunter2@h:99999/x", "a port is a number up to 65535"),
        ("postgresql://u:hunter2@h:port/x", "a port is a number up to 65535"),
        ("postgresql://u:hunter2@h/x?host=other", "host or port is given twice"),
        ("postgresql://u:hunter2@h/x?password=hunter2", "password is given twice"),
        ("postgresql:///x?host=a,b&port=1,2,3", "one port, or as many ports as hosts"),
        ("postgresql://u:hunter2/3@h/x", "in a password as %40"),
        ("postgresql://u:hunter2#3@h/x", "in a password as %40"),
        ("postgresql://u:hunter2@3@h/x", "in a password as %40"),
    ],
)
def test_a_wrong_url_says_what_is_wrong_without_the_password(url: str, why: str) -> None:
    for read in (read_url, check_storage_url):
        with pytest.raises(ValueError, match="cannot open storage") as caught:
            read(url)
        assert why in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_an_address_shows_no_password_and_no_secret() -> None:
    storage = PostgresStorage("postgresql://u:hunter2@h:5432/x?secret=hunter3")
    assert "hunter" not in repr(storage.address)
    assert storage_name(storage) == "postgresql://h:5432/x"
