"""The mark of tests that look into modules while they run: a compiled function has no code object to watch or patch."""

import pytest

import ratebound

needs_pure_build = pytest.mark.skipif(ratebound.compiled, reason="needs the pure build")
