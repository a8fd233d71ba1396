"""Check that mypyc can compile the kernels. No C compiler is needed."""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from mypyc.build import mypycify

KERNELS = sorted(map(str, Path("src/ratebound/kernels").glob("*.py")))


def main() -> None:
    """Translate the kernels. Exits with mypyc's output if it rejects them."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                mypycify(KERNELS, target_dir=folder)
        except SystemExit as stop:
            print(said.getvalue(), file=sys.stderr)
            raise SystemExit(f"mypyc does not accept the kernels: {stop}") from None
    print(f"mypyc accepts {len(KERNELS)} kernel files")


if __name__ == "__main__":
    main()
