"""`ratebound explain` and `ratebound state` have words for distinct values and penalties."""

import io

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ratebound import InvalidLimit, Limit, Limiter, MemoryStorage, parse_limits
from ratebound.cli.app import app
from ratebound.cli.explain import explain_limits
from ratebound.cli.state import _document, show_usage
from ratebound.clock import SECOND
from ratebound.limit import MAX_BLOCK, MAX_STRIKES, MAX_VALUES, limit_set
from ratebound.testing import FakeClock
from tests.property.strategies import limits

VALUES = "20 distinct account/hour"
PENALTY = "3 strikes/hour block 5 minutes then 1 hour then 1 day forget 2 weeks"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})


def explained(text: str, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    explain_limits(limit_set(parse_limits(text)), console)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_distinct_values_say_what_counts_and_for_how_long() -> None:
    told = explained(VALUES)
    assert "At most 20 different values of 'account' in any hour." in told
    assert "until 1 h after its last allowed sight" in told
    assert "█" not in told


def test_a_penalty_says_what_is_a_strike_and_how_long_it_blocks() -> None:
    told = explained(PENALTY)
    assert "Blocks a key after 3 strikes in any hour." in told
    assert "5 min, then 1 h, then 1 day; the last one repeats" in told
    assert "14 days after the end of a block" in told
    assert "one second" in told
    assert "█" not in told
    assert "1 strike in any minute." in explained("1 strike/minute block 10 seconds")
    assert "10 s, each time" in explained("1 strike/minute block 10 seconds")


def test_together_they_are_named_beside_the_picture_of_the_rates() -> None:
    told = explained(f"5/minute; {VALUES}; {PENALTY}")
    assert "'5/minute' says wait" in told
    assert f"at any time at most 20 different values of 'account' by '{VALUES}'" in told
    assert f"after 3 strikes '{PENALTY}' blocks" in told
    assert "the first block lasts 5 min" in told
    assert "A client that waits as it is told: units passed" in told, "one that always asks would be blocked"
    assert "█" in told


def test_the_command_explains_them() -> None:
    result = run("explain", "20 distinct account/hour; 3 strikes/hour block 5 minutes then 1 hour")
    assert result.exit_code == 0, result.output
    assert "Together" in result.output


@pytest.mark.parametrize("text", [VALUES, PENALTY])
def test_the_demo_plays_rates_only_and_says_so(text: str) -> None:
    result = run("demo", text)
    assert result.exit_code == 2
    assert "ratebound explain" in result.output
    assert "Traceback" not in result.output


DISTINCT = st.builds(
    lambda count, period: Limit(count, period, algorithm="distinct", values="account"),
    st.integers(1, MAX_VALUES),
    st.integers(1, MAX_BLOCK),
)
PENALTIES = st.builds(
    lambda count, period, blocks, forget: Limit(
        count, period, algorithm="penalty", blocks_us=tuple(blocks), forget_us=forget
    ),
    st.integers(1, MAX_STRIKES),
    st.integers(MAX_STRIKES * SECOND, MAX_BLOCK),
    st.lists(st.integers(SECOND, MAX_BLOCK), min_size=1, max_size=8),
    st.integers(SECOND, MAX_BLOCK),
)


@settings(max_examples=max(settings().max_examples // 3, 1))
@given(
    chosen=st.lists(st.one_of(limits(), DISTINCT, PENALTIES), min_size=1, max_size=3),
    width=st.sampled_from([24, 60, 100]),
)
def test_every_one_of_them_can_be_explained(chosen: list[Limit], width: int) -> None:
    try:
        together = limit_set(chosen)
    except InvalidLimit:  # two that share a state
        return
    console = Console(file=io.StringIO(), width=width)
    explain_limits(together, console)
    assert isinstance(console.file, io.StringIO)
    assert str(together[0]).split(maxsplit=1)[0] in console.file.getvalue()


def test_the_state_of_a_key_shows_values_strikes_and_blocks(clock: FakeClock) -> None:
    text = "1/day as daily; 5 distinct account/hour as accounts; 1 strike/hour block 5 minutes as guessing"
    limiter = Limiter(text, storage=MemoryStorage(clock=clock))

    def shown() -> str:
        console = Console(file=io.StringIO(), width=120)
        show_usage(limiter.usage("a"), console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    limiter.hit("a", values={"account": "alice"})
    assert "blocked" not in shown()
    limiter.hit("a", values={"account": "alice"})
    assert "guessing, blocked" in shown()
    assert "2023-11-14 22:18:20" in shown(), "the end of the block"
    assert "alice" not in shown()
    assert [_document(one)["blocked"] for one in limiter.usage("a")] == [False, False, True]
