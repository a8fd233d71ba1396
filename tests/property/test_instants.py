"""The instants of a sliding log behave like a list, whatever is added and dropped."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound.kernels.instants import Instants, listed, new_instants

INSTANTS = st.lists(st.integers(-(2**53), 2**53), max_size=11)
STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "add", "drop", "delete"]), INSTANTS, st.integers(0, 12)), max_size=30
)


@given(INSTANTS, STEPS)
def test_instants_are_a_list(first: list[int], steps: list[tuple[str, list[int], int]]) -> None:
    expected = list(first)
    instants = Instants(first)
    for what, values, count in steps:
        if what == "append":
            for value in values[:5]:
                instants.append(value)
            expected += values[:5]
        elif what == "add":
            instants += values
            expected += values
        else:
            count = min(count, len(expected))
            if what == "drop":
                instants.drop(count)
            else:
                del instants[:count]
            del expected[:count]
        assert listed(instants) == expected
        assert len(instants) == len(expected)
        assert bool(instants) == bool(expected)


@given(INSTANTS)
def test_new_instants_are_those_given(values: list[int]) -> None:
    assert listed(new_instants(list(values))) == values
