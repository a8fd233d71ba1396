"""Every example in the documentation runs, as it is printed."""

import ast
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from ratebound import Limiter
from ratebound.cli.ledger import ledger as ledger_command
from ratebound.cli.state import state
from ratebound.cli.storage import storage as storage_command
from ratebound.ledger import Change, Ledger
from ratebound.policy import Gate, RequestView, load_policy
from ratebound.storage import unguarded
from tests.databases import Memcached, Postgres
from tests.documentation.pages import PAGES, ROOT, blocks

EXAMPLES = sorted(path.name for path in ROOT.glob("examples/*.py"))


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
            assert ratebound("storage", "init", found["postgresql"]).exit_code == 0
        return found["postgresql"]

    def put_in(text: str) -> str:
        if needs(text, "postgresql"):
            text = re.sub(r"postgresql://\w+@localhost/app", database(), text)
        if needs(text, "memcached"):
            server: Memcached = request.getfixturevalue("memcached")
            text = text.replace("memcached://localhost:11211", server.url)
        return re.sub(r"sqlite:///(\w+\.db)", rf"sqlite:///{tmp_path}/\1", text)

    return put_in


def ratebound(name: str, *arguments: str) -> Result:
    """Run a command in this process: `ratebound NAME …`."""
    return CliRunner().invoke({"ledger": ledger_command, "state": state, "storage": storage_command}[name], arguments)


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


@pytest.mark.parametrize("page", ["docs/guides/ledger.md", "docs/guides/postgresql.md", "docs/guides/sqlite.md"])
def test_the_commands_of_a_page_about_a_database_run_after_its_examples(
    page: str, on_servers: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(on_servers("\n".join(blocks(page, "python")))).returncode == 0
    assert commands(page)
    for command in commands(page):
        program, *given = shlex.split(on_servers(command), comments=True)
        assert program == "ratebound"
        done = ratebound(*(given[: given.index(">")] if ">" in given else given))
        assert done.exit_code == 0, (command, done.output, done.exception)


def test_the_privileges_that_the_pages_grant_are_enough(postgres: Postgres) -> None:
    owner, role = postgres.new_database(), f"app{time.time_ns()}"
    assert ratebound("storage", "init", owner).exit_code == 0
    statements = "".join(blocks("docs/guides/postgresql.md", "sql") + blocks("docs/guides/ledger.md", "sql"))
    assert "CREATE ROLE app" in statements
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(re.sub(r"\bapp\b", role, statements).encode())
    url = owner.replace("ratebound@", f"{role}@")
    try:
        with Limiter("2/hour", storage=f"{url}?timeout=10", failure="raise") as limiter:
            assert [limiter.hit("a").allowed for _ in range(3)] == [True, True, False]
            limiter.reset("a")
            storage = unguarded(limiter.storage)
            assert storage.write_document("blocks", b"{}", 0)
            assert storage.sweep() == 0
        with Ledger(url, clients="name") as ledger:
            Limiter("2/hour as api", listeners=[ledger]).hit("user:42")
            ledger.flush()
            ledger.record_changes([Change(datetime.now(UTC), "ann", "block", "user:42", "")])
            assert [row.client for row in ledger.top()] == ["user:42"]
            assert [change.by for change in ledger.audit()] == ["ann"]
    finally:
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def test_the_bill_of_the_guide_has_what_exceeds_the_quota(tmp_path: Path) -> None:
    (rules,) = blocks("docs/guides/ledger.md", "yaml")
    policy, url = tmp_path / "policy.yaml", f"sqlite:///{tmp_path}/usage.db"
    policy.write_text(rules.replace("1000000/", "2/"))
    ledger = Ledger(url, clients="name")
    with Gate(load_policy(policy), listeners=[ledger]) as gate:
        for _ in range(3):
            assert gate.decide(RequestView("GET", "/api/report", peer="192.0.2.1"))
    assert ledger.close()
    (month,) = ledger.months()
    done = ratebound("ledger", "overage", "--month", month, "--format", "csv", "--ledger", url)
    heading = next(block for block in blocks("docs/guides/ledger.md", "text") if "overage" in block).splitlines()[0]
    assert done.output.splitlines() == [heading, f"{month},192.0.2.1,api,3,1"]


def test_the_first_example_is_five_lines_and_runs_by_itself() -> None:
    first = blocks("README.md", "python")[0]
    assert len(first.splitlines()) == 5
    done = run(first)
    assert (done.returncode, done.stdout) == (0, "")
    denied = run(
        first.replace("100/minute; 10/second burst 20", "1/minute").replace("hit(", "hit('user:42') and limiter.hit(")
    )
    assert re.fullmatch(r"429: retry in \d+(\.\d+)? s\n", denied.stdout), denied


def test_the_policy_example_of_the_readme_answers_a_denied_request() -> None:
    example = next(block for block in blocks("README.md", "python") if "if not verdict" in block)
    once = "verdict = gate.decide(request)\n"
    done = run(example.replace(once, once * 6) + "\nprint(status, body.decode())")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("429 {"), done


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
        if not anchor.startswith("ratebound."):  # an anchor of the API, which only the site has
            assert anchor in headings(where), f"{page} links to {target}#{anchor}"


def test_the_commands_of_the_readme_are_those_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = "".join((ROOT / page).read_text() for page in PAGES)
    assert set(re.findall(r"\bmake ([a-z-]+)(?=[`\s]*(?:`|#|\n))", pages)) <= targets
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("exec make test")
