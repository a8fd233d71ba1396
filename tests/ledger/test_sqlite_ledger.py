"""The ledger in an SQLite file: what is counted is written, added up and found again."""

from pathlib import Path

from ratebound import Limiter
from ratebound.ledger import Ledger


def test_usage_is_written_and_found_again(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name") as ledger:
        limiter = Limiter("3/minute as search", listeners=[ledger])
        for _ in range(5):
            limiter.hit("user:42", cost=1)
        ledger.flush()
        (found,) = ledger.usage("user:42", by="month")
        assert found[1:] == ("search", 3, 3, 2, 0)
        assert ledger.months() == [found.begin.strftime("%Y-%m")]
