"""A hit without its check for listeners: the floor for what listening costs when nobody listens."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ratebound import Limiter, memory_fast_path
from ratebound.memory_fast_path import MemoryFastPath


def unasked_hit(limiter: Limiter) -> Callable[..., Any]:
    """Return the limiter's `hit`, with a fast path that does not check for listeners."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(MemoryFastPath.hit)))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    checks = [line for line in function.body if isinstance(line, ast.If) and "listeners" in ast.unparse(line.test)]
    if len(checks) != 1:
        raise AssertionError("MemoryFastPath.hit does not check for listeners in one if: measure it in another way")
    function.body[function.body.index(checks[0]) :] = checks[0].body
    names = dict(vars(memory_fast_path))
    exec(compile(tree, "hit without listeners", "exec"), names)

    class Unasked(MemoryFastPath):
        __slots__ = ()
        hit = names["hit"]

    unasked = Unasked()
    unasked.states = limiter._fast_path.states
    limiter._fast_path = unasked
    return limiter.hit
