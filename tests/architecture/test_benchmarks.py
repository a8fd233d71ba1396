"""A benchmark that takes code apart must find what it looks for there."""

from benchmarks.unasked_hit import unasked_hit

from ratebound import Limiter


def test_a_hit_without_its_check_for_listeners_decides_as_before() -> None:
    limiter, other = Limiter("1/day"), Limiter("1/day")
    other.storage = limiter.storage
    hit = unasked_hit(other)
    assert hit("a")
    assert not limiter.hit("a")
    assert limiter.hit("b")
    assert not hit("b")
