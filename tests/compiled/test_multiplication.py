"""Compiled modules multiply whole numbers by `product` only: an exception out of `*` would abort the program."""

import ast
from pathlib import Path

import pytest

from tests.compiled.test_which_build_runs import MODULES

SOURCE = Path(__file__).parents[2] / "src"

# Numbers that are always small, floats and lists.
HARMLESS = {
    "4 * more[1]",
    "[0] * len(states)",
    "random() * len(self.ring)",
    "2 * len(self.states)",
    "time * units",  # of product itself, uncompiled
    "i64(time) * i64(units)",
}


@pytest.mark.parametrize("module", MODULES)
def test_whole_numbers_are_multiplied_by_product(module: str) -> None:
    path = SOURCE / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
    found = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mult)
    ]
    assert [text for text in found if text not in HARMLESS] == []
