"""The shape that ARCHITECTURE.md promises."""

import ast
import re
import sys
import tomllib
from pathlib import Path
from types import FrameType
from typing import Any

from ratebound import Limiter
from ratebound.kernels.gcra import Bucket
from tests.builds import needs_pure_build

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ratebound"


@needs_pure_build
def test_the_arithmetic_is_three_calls_away() -> None:
    limiter = Limiter("10/second burst 20")
    limiter.hit("k")
    depths: list[int] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Bucket.spend.__code__:
            depth, caller = 1, frame.f_back
            while caller is not None and caller.f_code is not Limiter.hit.__code__:
                depth, caller = depth + 1, caller.f_back
            depths.append(depth + 1)

    sys.setprofile(profile)
    limiter.hit("k")
    sys.setprofile(None)
    assert depths == [3]


def test_every_file_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|lua|json|md|toml))`", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert len(named) > 50
    assert [name for name in named if not (ROOT / name).exists() and not [*SOURCE.rglob(name)]] == []


def test_every_module_says_what_lives_in_it() -> None:
    for path in SOURCE.rglob("*.py"):
        assert path.read_text().startswith('"""'), path.name


def has_constant(product: ast.AST) -> bool:
    """Return True if a factor is a number, or a name in capitals."""
    factors = (product.left, product.right) if isinstance(product, ast.BinOp) else ()
    return any(isinstance(each, ast.Constant) or (isinstance(each, ast.Name) and each.id.isupper()) for each in factors)


def test_compiled_modules_multiply_with_product() -> None:
    """See `product`: the compiler's `*` of large numbers aborts the process if a signal handler raises.

    Shared memory multiplies numbers of shards, cells, blocks and entries, most of them by a constant of its layout. The
    results are offsets in a zone and numbers of its parts: never above `MOST_SIZE`, which is small.
    """
    small = {"4 * more[1]", "2 * len(self.states)", "random() * len(self.ring)", "[0] * len(states)"}
    small |= {"share * self.remaining"}  # the share of a slice, a float
    small |= {"shard * self.cells", "(shard + 1) * self.cells", "shard * self._blocks"}
    small |= {"(buckets + 1) * BUCKET * (CELL + 1)"}
    small |= {"[-1] * len(places)", "[0] * (len(bounds) + 1)", "[None] * len(NAMES)"}
    small |= {"16 * 1024", "32 * 1024", "1024 * 1024", "CHUNKED * bounds.body"}  # bytes of a request
    # Replays multiply numbers of requests and places in a table, and constants; times with `product`
    small |= {"60 * SECOND", "3600 * SECOND", "WIDTHS[0] * SECOND", "WIDTHS[self._step] * SECOND", "unit * place"}
    small |= {"[0] * EXACT", "[0] * HALF", "(shift - 1) * HALF", "value * many", "limit * many"}
    small |= {"share * self.total", "2.5 * REGISTERS", "REGISTERS * math.log(REGISTERS / empty)"}  # floats
    small |= {"0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS"}
    small |= {"0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS * REGISTERS"}
    uncompiled = {"ahead * count"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = set()
    for module in project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]:
        path = ROOT / "src" / module.replace(".", "/")
        tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
        for node in ast.walk(tree):
            is_product = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mult)
            if is_product and not (".shared_memory." in module and has_constant(node)):
                found.add(ast.unparse(node))
    assert found == small | uncompiled | {"time * units", "i64(time) * i64(units)"}  # the last two are in `product`
