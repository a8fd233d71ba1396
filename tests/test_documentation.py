"""Every example in the documentation runs, as it is printed."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.databases import Memcached, Postgres

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLES = sorted(path.name for path in ROOT.glob("examples/*.py"))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def needs(text: str, scheme: str) -> bool:
    """Return True if a text has a URL of this kind of server on the reader's machine."""
    return f"{scheme}://" in text


@pytest.fixture
def on_servers(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that puts the URLs of real servers, and files in a folder of this test, into a text.

    Every test has a database of its own, with the tables of Ratebound in it.
    """
    found: dict[str, str] = {}

    def database() -> str:
        if "postgresql" not in found:
            server: Postgres = request.getfixturevalue("postgres")
            found["postgresql"] = server.new_database()
            command = [sys.executable, "-m", "ratebound", "storage", "init", found["postgresql"]]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        return found["postgresql"]

    def put_in(text: str) -> str:
        if needs(text, "postgresql"):
            text = re.sub(r"postgresql://\w+@localhost/app", database(), text)
        if needs(text, "memcached"):
            server: Memcached = request.getfixturevalue("memcached")
            text = text.replace("memcached://localhost:11211", server.url)
        return re.sub(r"sqlite:///(\w+\.db)", rf"sqlite:///{tmp_path}/\1", text)

    return put_in


def run(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONWARNINGS": "error"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_examples_of_a_page_run_in_order(page: str, on_servers: Callable[[str], str]) -> None:
    done = run(on_servers("\n".join(blocks(page, "python"))))
    assert done.returncode == 0, done.stderr


def commands(page: str) -> list[str]:
    """Return the commands of a page that set up databases and ask the ledger, without their comments."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if re.match(r"(\$ )?ratebound (storage|ledger|state) ", line)]


@pytest.mark.parametrize("page", ["docs/ledger.md", "docs/postgresql.md", "docs/sqlite.md"])
def test_the_commands_of_a_page_about_a_database_run_after_its_examples(
    page: str, on_servers: Callable[[str], str], tmp_path: Path
) -> None:
    _wait_for(page)
    assert run(on_servers("\n".join(blocks(page, "python")))).returncode == 0
    assert commands(page)
    for command in commands(page):
        given = shlex.split(on_servers(command), comments=True)
        given = given[: given.index(">")] if ">" in given else given
        done = subprocess.run([sys.executable, "-m", *given], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def _wait_for(page: str) -> None:
    """Skip a page whose commands have not landed yet."""
    if page == "docs/ledger.md" and "MIGRATIONS" not in (ROOT / "src/ratebound/cli/postgres_tables.py").read_text():
        pytest.skip("not there yet")


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
