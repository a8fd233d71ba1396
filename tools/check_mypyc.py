"""Ask mypyc to translate the kernels, so that they stay compilable. No C compiler is needed for that."""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from mypyc.build import mypycify

KERNELS = sorted(map(str, Path("src/ratebound/kernels").glob("*.py")))


def main() -> None:
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
