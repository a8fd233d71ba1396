"""States as they are stored: those of older versions are read, those with holes are kept and expire."""

import itertools
from contextlib import closing
from struct import pack, unpack
from typing import Any

import pytest
import redis

from ratebound import Limit, StorageError, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import Group
from ratebound.settling import spent_of
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import ask
from tests.servers import Server

runs = itertools.count()


def storage_of(server: Server) -> tuple[RedisStorage, str]:
    prefix = f"states{next(runs)}-"
    return RedisStorage(f"{server.url}?timeout=5&connect_timeout=5&prefix={prefix}"), prefix


def found(server: Server, prefix: str) -> tuple[str, Any]:
    """The only key under a prefix, and a client that reads its value as bytes."""
    client = redis.Redis.from_url(server.url)
    (key,) = client.scan_iter(match=f"*{prefix}*")
    return key.decode(), client


def test_a_fixed_window_that_an_older_version_wrote_is_counted_on_and_refunded(redis_url_server: Server) -> None:
    storage, prefix = storage_of(redis_url_server)
    limit = parse_limit("10/year fixed-window")
    with closing(storage):
        ask(storage, "k", limit, 4)
        key, client = found(redis_url_server, prefix)
        client.set(key, pack("<dd", *unpack("<ddd", client.get(key))[:2]), keepttl=True)
        assert ask(storage, "k", limit, mode="peek").remaining == 6
        spent = ask(storage, "k", limit, 2)
        assert spent.remaining == 4
        client.set(key, pack("<dd", *unpack("<ddd", client.get(key))[:2]), keepttl=True)
        assert ask(storage, "k", limit, -2, "force", spent=spent).remaining == 6


def test_a_sliding_log_that_an_older_version_wrote_is_counted_on_and_refunded(redis_url_server: Server) -> None:
    storage, prefix = storage_of(redis_url_server)
    limit = parse_limit("10/year sliding-log")

    def without_sums() -> None:
        entries = client.lrange(key, 0, -1)
        client.delete(key)
        client.rpush(key, *(entry[:16] for entry in entries))

    with closing(storage):
        spent = ask(storage, "k", limit, 4)
        key, client = found(redis_url_server, prefix)
        without_sums()
        assert ask(storage, "k", limit, mode="peek").remaining == 6
        assert ask(storage, "k", limit, 2).remaining == 4
        assert not ask(storage, "k", limit, 5).allowed
        without_sums()
        assert not ask(storage, "k", limit, 5).allowed
        assert ask(storage, "k", limit, -4, "force", spent=spent).remaining == 8


def test_a_bucket_with_holes_that_an_older_version_wrote_hands_them_out(redis_url_server: Server) -> None:
    storage, prefix = storage_of(redis_url_server)
    limit = Limit(1, 60 * SECOND, 1, "token-bucket")
    with closing(storage):
        places = [ask(storage, "k", limit, patience=600 * SECOND) for _ in range(4)]
        key, client = found(redis_url_server, prefix)
        ask(storage, "k", limit, -1, "force", spent=places[1])
        value = client.get(key)
        client.set(key, value[:48] + value[56:], keepttl=True)  # without the number of holes
        again = [ask(storage, "k", limit, patience=600 * SECOND) for _ in range(2)]
        assert again[0].delay_us < places[2].delay_us < places[3].delay_us < again[1].delay_us + SECOND


def test_a_state_with_holes_expires_with_its_last_place_and_is_shorter_again_without_them(
    redis_url_server: Server,
) -> None:
    storage, prefix = storage_of(redis_url_server)
    limit = Limit(1, 60 * SECOND, 1, "token-bucket")
    with closing(storage):
        places = [ask(storage, "k", limit, patience=600 * SECOND) for _ in range(4)]
        key, client = found(redis_url_server, prefix)
        assert client.strlen(key) == 40
        ask(storage, "k", limit, -1, "force", spent=places[2])
        assert client.strlen(key) == 88
        assert 238_000 <= client.pttl(key) <= 240_001
        ask(storage, "k", limit, -1, "force", spent=places[3])
        assert client.strlen(key) == 56  # the turn stays until it has passed: what came back may be a part of a place
        assert client.pttl(key) <= 120_001


@pytest.mark.parametrize("length", [8, 39, 41, 47, 56, 64])
def test_a_bucket_of_another_length_is_not_ours(redis_url_server: Server, length: int) -> None:
    storage, prefix = storage_of(redis_url_server)
    limit = parse_limit("10/minute burst 10")
    with closing(storage):
        ask(storage, "k", limit)
        key, client = found(redis_url_server, prefix)
        client.set(key, b"x" * length)
        with pytest.raises(StorageError):
            ask(storage, "k", limit)


def test_a_place_between_others_is_refunded_by_what_redis_said_of_it(redis_url_server: Server) -> None:
    storage, _ = storage_of(redis_url_server)
    limit = Limit(1, 60 * SECOND, 1, "token-bucket")
    with closing(storage):
        places = [ask(storage, "k", limit, patience=600 * SECOND) for _ in range(4)]
        ask(storage, "k", limit, -1, "force", spent=places[1])
        between = ask(storage, "k", limit, patience=600 * SECOND)
        assert between.delay_us < places[2].delay_us
        group: Group = (("k", (limit,), -1, None, [spent_of(between)]),)
        storage.evaluate((group,), "force")
        again = ask(storage, "k", limit, patience=600 * SECOND)
        assert abs(again.at_us + again.delay_us - between.at_us - between.delay_us) <= 1
