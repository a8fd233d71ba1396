"""Every example in the documentation runs, as it is printed."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLES = sorted(path.name for path in ROOT.glob("examples/*.py"))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def run(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_examples_of_a_page_run_in_order(page: str) -> None:
    done = run("\n".join(blocks(page, "python")))
    assert done.returncode == 0, done.stderr


def test_the_first_example_is_five_lines_and_runs_by_itself() -> None:
    first = blocks("README.md", "python")[0]
    assert len(first.splitlines()) == 5
    done = run(first)
    assert (done.returncode, done.stdout) == (0, "")
    denied = run(
        first.replace("100/minute; 10/second burst 20", "1/minute").replace("hit(", "hit('user:42') and limiter.hit(")
    )
    assert re.fullmatch(r"429: retry in \d+(\.\d+)? s\n", denied.stdout), denied


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_says_something(name: str) -> None:
    source = (ROOT / "examples" / name).read_text()
    assert ast.get_docstring(ast.parse(source))
    done = run(source)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as hosts of repositories make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_heading_leads_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (ROOT / page).read_text()):
        where = (ROOT / page).parent / target if target else ROOT / page
        assert anchor in headings(where), f"{page} links to {target}#{anchor}"


def test_the_commands_of_the_readme_are_those_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = "".join((ROOT / page).read_text() for page in PAGES)
    assert set(re.findall(r"\bmake ([a-z-]+)(?=[`\s]*(?:`|#|\n))", pages)) <= targets
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec make test")
