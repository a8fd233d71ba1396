"""`Limiter.hit` without its check for listeners: the floor for what listening costs when nobody listens."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ratebound import Limiter, memory_fast_path
from ratebound.memory_fast_path import MemoryFastPath


def unasked_hit(limiter: Limiter) -> Callable[..., Any]:
    """Return `hit` of a limiter whose fast path does not ask who listens.

    The fast path is made from its source, with the body of the `if` that checks for listeners in its place. So only
    the pure build can run it.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(MemoryFastPath.hit)))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    checks = [line for line in function.body if isinstance(line, ast.If) and ast.unparse(line.test) == "not listeners"]
    if len(checks) != 1:
        raise AssertionError("MemoryFastPath.hit does not check for listeners in one if: measure it in another way")
    function.body[function.body.index(checks[0]) :] = checks[0].body
    names = dict(vars(memory_fast_path))
    exec(compile(tree, "hit without listeners", "exec"), names)
    unasked: Any = type("UnaskedFastPath", (MemoryFastPath,), {"__slots__": (), "hit": names["hit"]})()
    unasked.states = limiter._fast_path.states
    limiter._fast_path = unasked
    return limiter.hit
