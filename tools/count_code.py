"""Count lines of code by area, without docstrings, comments and blank lines: `python tools/count_code.py [folder …]`.

An area is a folder or a file directly below `src/ratebound`, or what is given: `src/ratebound/web` counts its parts.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "ratebound"
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_lines(text: str) -> int:
    """Return how many lines of a module hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count_area(area: Path) -> int:
    """Return how many lines of code are in a file, or in all files below a folder."""
    files = [area] if area.is_file() else sorted(area.rglob("*.py"))
    return sum(count_lines(file.read_text()) for file in files)


def main(folders: list[Path]) -> None:
    """Print the areas of each folder, the largest first, and their sum."""
    for folder in folders:
        areas = [area for area in folder.iterdir() if area.is_dir() or area.suffix == ".py"]
        counts = sorted(((count_area(area), area.name) for area in areas if area.name != "__pycache__"), reverse=True)
        print(f"{sum(count for count, _ in counts):7}  {folder.name}/")
        for count, name in counts:
            print(f"{count:7}    {name}")


if __name__ == "__main__":
    main([Path(given) for given in sys.argv[1:]] or [SOURCE])
