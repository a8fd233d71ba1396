"""The `ratebound` command teaches: its help is in the order of a user's path, and every example in it is real."""

import errno
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from ratebound.cli.all_commands import all_commands
from ratebound.cli.exit_status import errors_told
from ratebound.errors import RateboundError, StorageError
from ratebound.limit import ALGORITHMS
from ratebound.policy import SCHEMA_PATH
from ratebound.storage.urls import SCHEMES, check_storage_url

ROOT = Path(__file__).parents[2]
APP = all_commands()
PAGES = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))["pages"]()


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[click.Command, str]]:
    yield command, " ".join(("ratebound", *path))
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from walk(found, (*path, name))


COMMANDS = [pytest.param(command, path, id=path) for command, path in walk(APP)]
every_command = pytest.mark.parametrize(("command", "path"), COMMANDS)


def examples(command: click.Command) -> list[str]:
    return re.findall(r"^  +(ratebound .*)$", f"{command.help}\n{command.epilog}", re.MULTILINE)


def parsed(line: str) -> str:
    """Parse a command line, without running it. Return the path of the command that it names."""
    command: click.Command = APP
    name, *words = shlex.split(line)
    ctx = click.Context(APP, info_name=name)
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(ctx, words)
        assert found is not None
        command = found
        if not isinstance(command, click.Group):
            break
        ctx = click.Context(command, info_name=command.name, parent=ctx)
    return command.make_context(str(command.name), words, parent=ctx).command_path


def run(*words: str) -> Any:
    return CliRunner().invoke(APP, words, prog_name="ratebound")


@every_command
def test_a_command_has_two_or_three_examples_and_all_of_them_can_be_parsed(command: click.Command, path: str) -> None:
    found = examples(command)
    assert len(found) in (2, 3)
    for line in found:
        assert parsed(line).startswith(path)
        if path != "ratebound":
            assert line.startswith(f"{path} ") or line == path


@every_command
def test_the_help_begins_with_a_sentence_and_each_command_fits_in_a_line(command: click.Command, path: str) -> None:
    first = (command.help or "").split("\n\n")[0]
    assert re.match(r"[A-Z][a-z]+,? .*[.:]$", first, re.DOTALL), first
    if path != "ratebound":
        assert len(command.get_short_help_str(200)) <= 66
        assert command.get_short_help_str(200).endswith(".")


@every_command
def test_every_option_is_explained_with_what_stands_for_its_value(command: click.Command, path: str) -> None:
    ctx = click.Context(command, info_name=path)
    for option in command.get_params(ctx):
        if isinstance(option, click.Option):
            assert option.help, option.opts
            value = "" if option.is_flag else option.make_metavar(ctx)
            assert option.metavar or not re.search("TEXT|INTEGER|FLOAT|RANGE", value), (option.opts, value)
            assert option.show_envvar or not option.envvar, option.opts


@every_command
def test_defaults_are_shown(command: click.Command, path: str) -> None:
    shown = " ".join(run(*path.split()[1:], "--help").output.split())
    ctx = click.Context(command, info_name=path)
    for option in command.get_params(ctx):
        given = None if not isinstance(option, click.Option) or option.is_flag else option.get_default(ctx)
        if isinstance(given, str | int | float) and given != "":
            assert re.search(rf"\[[^]]*default: {re.escape(str(given))}\b", shown), option.opts


def test_every_command_is_in_one_section_and_no_other() -> None:
    named = [name for names in APP.sections.values() for name in names]
    assert sorted(named) == sorted(APP.list_commands(click.Context(APP)))


def test_the_help_follows_the_path_of_a_user() -> None:
    shown = run("--help").output
    headings = re.findall(r"^([A-Z].*):$", shown, re.MULTILINE)
    assert headings == ["Options", *APP.sections]
    assert shown.index("explain") < shown.index("serve") < shown.index("Start with:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["polcy"], "No such command 'polcy'. Did you mean 'policy'?"),
        (["policy", "chek"], "No such command 'chek'. Did you mean 'check'?"),
        (["ask", "http", "decde"], "No such command 'decde'. Did you mean 'decide'?"),
        (["quux"], "No such command 'quux'. Run: ratebound --help"),
        (["policy", "check", "--strct", "policy.yaml"], "--strict"),
    ],
)
def test_a_misspelt_name_is_told_with_what_was_probably_meant(words: list[str], said: str) -> None:
    answer = run(*words)
    assert answer.exit_code == 2
    assert said in answer.output


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_reference_page_is_as_the_program_is(path: Path) -> None:
    assert path.read_text("utf-8") == PAGES[path], "run: python tools/write_reference.py"


def test_the_schema_is_printed_and_written_and_not_overwritten(tmp_path: Path) -> None:
    assert json.loads(run("policy", "schema").output) == json.loads(SCHEMA_PATH.read_text("utf-8"))
    file = str(tmp_path / "ratebound.schema.json")
    written = run("policy", "schema", "--output", file)
    assert "# yaml-language-server: $schema=./ratebound.schema.json" in written.stderr
    assert Path(file).read_text("utf-8") == SCHEMA_PATH.read_text("utf-8")
    assert run("policy", "schema", "--output", file).exit_code == 2
    assert run("policy", "schema", "--output", file, "--force").exit_code == 0


@pytest.mark.parametrize(
    "name", ["explain", "demo", "policy", "policy check", "policy explain", "policy schema", "completion"]
)
def test_examples_that_need_no_server_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text((ROOT / "examples" / "policies" / "quotas.yaml").read_text("utf-8"))
    command = next(one for one, path in walk(APP) if path == f"ratebound {name}")
    for line in examples(command):
        answer = run(*shlex.split(line)[1:])
        assert answer.exit_code == 0, (line, answer.output)


# What a shell does: it runs the program with the words in the environment, and reads what may come next.


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ratebound` in it, to be put on PATH, and with what `ratebound completion bash` prints."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "ratebound"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ratebound "$@"\n')
    script.chmod(0o755)
    with (folder / "completion").open("w") as completion:
        subprocess.run([script, "completion", "bash"], stdout=completion, cwd=ROOT, timeout=60, check=True)
    return folder


def completed(program: Path, *words: str, cwd: Path = ROOT) -> list[str]:
    """Return what bash offers for the last of the words, by the script that `ratebound completion bash` prints."""
    ask = f"""
set -e
source {shlex.quote(str(program / "completion"))}
COMP_WORDS=(ratebound {" ".join(map(shlex.quote, words))})
COMP_CWORD={len(words)}
function compopt() {{ if [[ "$*" == *default* || "$*" == *filenames* ]]; then COMPREPLY+=("<files>"); fi; }}
_ratebound_completion ratebound
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environ = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], env=environ, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def test_bash_completes_commands_values_and_files(program: Path) -> None:
    assert completed(program, "po") == ["policy"]
    assert completed(program, "blocks", "list", "--storage", "re") == ["redis://", "rediss://"]
    assert completed(program, "policy", "check", "p") == ["<files>"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["policy", "s"], ["plain,schema"]),
        (["policy", "check", "--st"], ["plain,--strict"]),
        (["explain", "--default-algorithm", "slid"], ["plain,sliding-log", "plain,sliding-counter"]),
        (["storage", "show", "post"], ["plain,postgresql://", "plain,postgres://"]),
        (["ledger", "report", "--ledger", ""], ["plain,sqlite:///", "plain,postgresql://"]),
        (["serve", "--storage", "sh"], ["plain,shm://"]),
        (["switches", "set", "sh"], ["plain,shadow"]),
        (["serve", "--policy", "p"], ["file,p"]),
        (["replay", "a"], ["file,a"]),
        (["state", "usage", "k", "--policy", "p"], ["file,p"]),
    ],
)
def test_a_shell_is_offered_commands_options_values_and_files(
    words: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the program prints for the script, which the test above runs."""
    monkeypatch.setenv("COMP_WORDS", shlex.join(["ratebound", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert BashComplete(APP, {}, "ratebound", "_RATEBOUND_COMPLETE").complete().splitlines() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_clicks_own(shell: str) -> None:
    script = run("completion", shell).output
    assert f"_RATEBOUND_COMPLETE={shell}_complete" in script
    assert "ratebound" in script


def test_every_scheme_that_a_shell_offers_opens_a_storage() -> None:
    rest = {"shm": "api", "unix": "/run/redis.sock", "sqlite": "/limits.db", "memory": ""}
    for scheme in SCHEMES:
        check_storage_url(f"{scheme}://{rest.get(scheme, 'host/db' if 'post' in scheme else 'host')}")
    assert len(ALGORITHMS) == len(set(ALGORITHMS))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [("--help",), ("completion", "bash"), ("policy", "--help"), ("--version",)])
def test_a_full_disk_is_told_in_words(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ratebound", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "cannot write the answer: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_command_whose_reader_has_gone_ends_in_silence() -> None:
    for arguments in (("policy", "schema"), ("explain", "10/second"), ("zone", "list")):
        end, begin = os.pipe()
        os.close(end)
        command = [sys.executable, "-m", "ratebound", *arguments]
        done = subprocess.run(command, stdout=begin, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        os.close(begin)
        assert (done.returncode, done.stderr) == (1, ""), arguments


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_closed_stdout_is_no_other_file(tmp_path: Path) -> None:
    """Without a null device in its place, the database would be opened as the file that everything is printed to."""
    storage = f"sqlite:///{tmp_path}/limits.db"
    assert run("storage", "init", storage).exit_code == 0
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(WRITES_TO_STDOUT)} blocks list --storage {storage} >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "/dev/null")


WRITES_TO_STDOUT = """
import atexit, os, sys
from ratebound.cli import main
atexit.register(lambda: print(os.readlink("/proc/self/fd/1"), file=sys.stderr))
sys.argv[0] = "ratebound"
main()
"""


@pytest.mark.parametrize(
    ("raised", "options", "status", "told"),
    [
        (
            StorageError("no route"),
            {"storage": "the storage could not be reached: "},
            1,
            "the storage could not be reached: no route",
        ),
        (RateboundError("give --key"), {}, 2, "give --key"),
        (ValueError("no URL"), {"values": True}, 2, "no URL"),
        (ModuleNotFoundError("redis-py is not installed"), {}, 2, "redis-py is not installed"),
        (OSError(errno.ENOSPC, "No space left on device"), {}, 1, "cannot write the answer: No space left on device"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            {"unwritten": 2},
            2,
            "cannot write the answer: No space left on device",
        ),
        (
            OSError(errno.EACCES, "Permission denied", "report.html"),
            {"unwritten": 2},
            2,
            "cannot use report.html: Permission denied",
        ),
        (KeyboardInterrupt(), {}, 130, "interrupted: there is no result"),
    ],
    ids=["storage", "mistake", "value", "package", "full disk", "full disk, own status", "file", "ctrl-c"],
)
def test_an_error_is_told_in_words_and_by_the_exit_status(
    raised: BaseException, options: dict[str, Any], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, errors_told(**options):
        raise raised
    assert (ended.value.code, capsys.readouterr().err) == (status, f"{told}\n")


def test_an_error_of_the_program_itself_keeps_its_traceback() -> None:
    for error in (ValueError("a bug"), ModuleNotFoundError("No module named 'x'", name="x")):
        with pytest.raises(type(error)), errors_told():
            raise error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_report_that_cannot_be_written_is_no_verdict(tmp_path: Path) -> None:
    """Status 1 of a replay says that too much is denied."""
    log = tmp_path / "access.log"
    log.write_text('10.0.0.1 - - [18/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 12 "-" "x"\n')
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ratebound", "replay", str(log)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "cannot write the answer: No space left on device\n")
