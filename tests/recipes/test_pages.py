"""The recipes of the docs are policies that `ratebound policy check` finds nothing wrong with."""

import re

import pytest
import yaml

from ratebound.policy import read_policy
from ratebound.policy.lint.checks import advise
from tests.recipes.pages import DOCS, recipe

RECIPES = [
    ("guides/abuse.md", "Stop credential stuffing"),
    ("guides/abuse.md", "Warn, slow, block"),
    ("guides/overload.md", "Survive overload"),
]


@pytest.mark.parametrize(("page", "heading"), RECIPES)
def test_a_recipe_has_no_mistake(page: str, heading: str) -> None:
    found = {advice.name for advice in advise(read_policy(recipe(page, heading)), workers=1)}
    assert found <= {"missing-default"}, "a recipe for the login limits nothing else"


def test_the_override_for_a_large_office_belongs_to_the_recipe() -> None:
    found = re.search(r"`(overrides: \[.*?\])`", (DOCS / "guides" / "abuse.md").read_text(), re.DOTALL)
    assert found is not None
    policy = read_policy({**recipe(*RECIPES[0]), **yaml.safe_load(found[1])})
    assert [override.client for override in policy.overrides] == ["203.0.113.7"] * 2
