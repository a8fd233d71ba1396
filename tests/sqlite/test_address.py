"""URLs of SQLite: what they say, and what is wrong with those that cannot be read."""

import os
from pathlib import Path

import pytest

from ratebound import AsyncLimiter, Limiter
from ratebound.errors import StorageError
from ratebound.storage.sqlite.address import SqliteAddress, check_file, read_url
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage
from ratebound.storage.urls import check_is_made, check_storage_url, open_async_storage, open_storage


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///limits.db", "limits.db"),
        ("sqlite:///data/limits.db", "data/limits.db"),
        ("sqlite:////var/lib/limits.db", "/var/lib/limits.db"),
        ("sqlite:////var/lib/a%20b%3F.db", "/var/lib/a b?.db"),
    ],
)
def test_three_slashes_are_a_relative_file_and_four_an_absolute_one(url: str, path: str) -> None:
    assert read_url(url) == SqliteAddress(os.path.abspath(path))


def test_options_are_read_from_the_query() -> None:
    found = read_url("sqlite:///a.db?timeout=0.1&synchronous=normal&secret=hush")
    assert (found.timeout, found.synchronous, found.secret) == (0.1, "normal", "hush")
    assert "hush" not in repr(found)
    assert found.url == f"sqlite:///{os.path.abspath('a.db')}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "use memory://, or name a file"),
        ("sqlite:///", "use memory://, or name a file"),
        ("sqlite:///:memory:", "use memory://, or name a file"),
        ("sqlite:limits.db", "expected for example 'sqlite:///limits.db'"),
        ("sqlite://limits.db", "three slashes come before the name of a file"),
        ("sqlite://user:hush@host/limits.db", "three slashes come before the name of a file"),
        ("sqlite:///a.db#b", "write '#' as %23"),
        ("sqlite:///a%00.db", "NUL"),
        ("sqlite:///a.db?timeout=soon", "timeout must be seconds, like 0.1"),
        ("sqlite:///a.db?timeout=0", "timeout"),
        ("sqlite:///a.db?synchronous=extra", "synchronous must be one of full, normal, off, not 'extra'"),
        ("sqlite:///a.db?secret=hush&mode=ro", "option 2 is unknown or repeated; known are timeout, synchronous"),
        ("sqlite:///a.db?timeout=1&timeout=2", "option 2 is unknown or repeated"),
        (f"sqlite:///a.db?secret={'hush' * 20}", "secret must have at most 64 bytes"),
    ],
)
def test_a_url_that_cannot_be_read_says_why_and_shows_no_secret(url: str, said: str) -> None:
    for read in (read_url, check_storage_url, open_storage, open_async_storage):
        with pytest.raises(ValueError, match="cannot open storage") as raised:
            read(url)
        assert said in str(raised.value)
        assert "hush" not in str(raised.value)


def test_a_url_opens_a_storage_of_its_kind_and_no_file_before_the_first_call(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    assert isinstance(open_storage(url), SqliteStorage)
    assert isinstance(open_async_storage(url), AsyncSqliteStorage)
    with Limiter("5/minute", storage=url) as limiter:
        AsyncLimiter("5/minute", storage=url)
        assert list(tmp_path.iterdir()) == []
        limiter.hit("k")
    assert [path.name for path in tmp_path.iterdir()] == ["limits.db"]


def test_a_file_that_is_not_there_is_an_error_for_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    for check in (check_file, check_is_made):
        with pytest.raises(StorageError, match="start the application first"):
            check(url)
    Limiter("5/minute", storage=url).hit("k")
    check_is_made(url)


def test_a_relative_file_stays_where_it_was_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limiter = Limiter("5/minute", storage="sqlite:///limits.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    limiter.hit("k")
    limiter.close()
    assert (tmp_path / "limits.db").exists()
