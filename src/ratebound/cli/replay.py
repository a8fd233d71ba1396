"""The command `ratebound replay`: what a policy would have decided about the requests of an access log."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ratebound.cli.app import open_console
from ratebound.cli.exit_status import MISTAKE, errors_told
from ratebound.cli.figures_page import shown
from ratebound.cli.parameters import FILE_OR_STREAM
from ratebound.cli.policy import ENVIRON, FUNCTIONS, environ_with
from ratebound.cli.policy_functions import functions_from
from ratebound.cli.replay_page import replay_page
from ratebound.errors import RateboundError
from ratebound.policy.load.loader import load_policy
from ratebound.replay.client_peaks import PeakTable
from ratebound.replay.engine import PolicyRun
from ratebound.replay.judged_policy import judged_policy
from ratebound.replay.log_replay import LogReplay
from ratebound.replay.read_log import LogReader
from ratebound.replay.report import GivenPolicy, ReplayReport, make_report, report_json
from ratebound.replay.report_html import report_html
from ratebound.replay.suggested_policy import policy_text
from ratebound.replay.whole_log import replay_log
from ratebound.share import read_share


@click.command(short_help="Replay an access log by a policy, or find limits that fit.")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    type=click.Path(),
    help="The policy to judge. Without one, limits are suggested.",
)
@click.option(
    "--against",
    metavar="FILE",
    type=click.Path(),
    help="The policy to compare with: shows who is newly denied, and who is freed.",
)
@click.option("--suggest", is_flag=True, help="Suggest limits, also if there is a policy.")
@click.option(
    "--write-policy", metavar="FILE", type=FILE_OR_STREAM, help="Write the suggested limits as a policy file."
)
@click.option(
    "--log-format",
    default="auto",
    metavar="FORMAT",
    help="The log's format: a name like combined or json, or the server's own format string.",
)
@click.option("--client-field", metavar="FIELD", help="The field of the log that has the client's address.")
@click.option("--user-field", metavar="FIELD", help="The field of the log that has the user.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=FIELD", help="A field of the log that holds a request header."
)
@click.option("--skip-429", "skip_429", is_flag=True, help="Leave out requests that were answered 429 already.")
@click.option(
    "--no-spread", is_flag=True, help="Let all requests of one second come at once, if the log has whole seconds."
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, metavar="NUMBER", help="Clients and endpoints to show."
)
@click.option("--json", "json_file", metavar="FILE", type=FILE_OR_STREAM, help="Write JSON; - is stdout.")
@click.option(
    "--html", "html_file", metavar="FILE", type=FILE_OR_STREAM, help="Write a page with pictures; - is stdout."
)
@click.option("--fail-if-denied", metavar="SHARE", help="Exit with status 1 if a larger share is denied: 1%, 0.001.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@ENVIRON
@FUNCTIONS
def replay(
    logs: tuple[str, ...],
    policy_file: str | None,
    against: str | None,
    suggest: bool,
    write_policy: str | None,
    log_format: str,
    client_field: str | None,
    user_field: str | None,
    headers: tuple[str, ...],
    skip_429: bool,
    no_spread: bool,
    top: int,
    json_file: str | None,
    html_file: str | None,
    fail_if_denied: str | None,
    quiet: bool,
    environ: tuple[str, ...],
    module: str | None,
) -> None:
    """Decide every request of an access log again by a policy, at the times of the log.

    Shows who would have been denied, when, and by which rule. With --against, compares two policies. Without a policy,
    suggests limits. LOG is a file, plain or compressed (gzip, bzip2, xz), or - for the standard input.

    Exit status: 0, or 1 if more is denied than --fail-if-denied allows, or 2 for wrong usage, for a log without
    requests and for a report that cannot be written, or 130 after Ctrl-C.

    \b
    Examples:
      ratebound replay access.log --policy policy.yaml --html report.html
      ratebound replay access.log --policy new.yaml --against deployed.yaml
      ratebound replay access.log --write-policy suggested.yaml
    """
    with errors_told(unwritten=MISTAKE):
        most = None if fail_if_denied is None else _share(fail_if_denied)
        named = _fields(headers)
        if policy_file is None and (against is not None or most is not None):
            raise RateboundError("--against and --fail-if-denied need a policy: give --policy FILE")
        suggests = suggest or policy_file is None or write_policy is not None
        _check_outputs(json_file, html_file, write_policy, inputs=[*logs, policy_file, against])
        given = [None if file is None else _given(file, named, module, environ) for file in (policy_file, against)]
        mapping = {"address": client_field, "user": user_field}
        reader = LogReader(
            logs,
            format=log_format,
            fields=[*named.values()],
            mapping={meaning: field for meaning, field in mapping.items() if field is not None},
        )
        played = LogReplay(
            *(None if one is None else one.run for one in given),
            peaks=PeakTable() if suggests else None,
            skip_refused=skip_429,
        )
        with _progress(reader, quiet=quiet) as show:
            replay_log(reader, played, spread=not no_spread, on_batch=show)
        if not played.requests:
            raise RateboundError(_no_requests(reader, skipped=played.refused if skip_429 else 0))
        report = make_report(
            reader,
            played,
            files=logs,
            policy=given[0],
            before=given[1],
            skipped=skip_429,
            spread=not no_spread,
            top=top,
        )
        _write(report, played, json_file, html_file, write_policy)
    sys.exit(1 if most is not None and report.denied_share > most else 0)


def _no_requests(reader: LogReader, *, skipped: int) -> str:
    """Return why there is nothing to judge. Without requests no policy denies, and no limit can be suggested."""
    read = f"no request was found: {reader.lines:,} lines, {reader.malformed:,} of them malformed"
    if skipped:
        return f"{read}, and {skipped:,} answered 429, which --skip-429 leaves out"
    if not reader.malformed:
        return read
    first = next((f"; the first is: {shown(one.text)[:100]}" for one in reader.samples), "")
    return f"{read} as format {reader.format}{first}\nGive the log's own format with --log-format"


def _given(file: str, headers: dict[str, str], module: str | None, environ: tuple[str, ...]) -> GivenPolicy:
    policy = load_policy(file, functions=functions_from(module), environ=environ_with(environ))
    judged, unjudged = judged_policy(policy, headers)
    return GivenPolicy(file, PolicyRun(judged, headers=headers), unjudged)


def _fields(headers: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in headers:
        name, equals, field = text.partition("=")
        if not equals or not name or not field:
            raise RateboundError(f"--header {text!r}: expected NAME=FIELD, for example x-api-key=http_x_api_key")
        found[name.lower()] = field
    return found


def _share(text: str) -> float:
    try:
        if float(text.strip().removesuffix("%")) == 0:
            return 0.0
        return read_share(text if "%" in text else float(text))
    except ValueError:
        raise RateboundError(f"--fail-if-denied {text!r}: expected a share like 1% or 0.001") from None


def _check_outputs(*files: str | None, inputs: Sequence[str | None]) -> None:
    if sum(file == "-" for file in files) > 1:
        raise RateboundError("only one of --json, --html and --write-policy can be written to stdout")
    named = [Path(file).resolve() for file in files if file not in (None, "-", os.devnull)]
    kept = {Path(file).resolve() for file in inputs if file not in (None, "-", os.devnull)}
    for path in named:
        if path in kept or named.count(path) > 1:
            raise RateboundError(f"{path} would be overwritten: write --json, --html and --write-policy to other files")
    for file in files:
        if file not in (None, "-"):
            try:
                Path(str(file)).open("a").close()  # found before the log is read
            except OSError as error:
                raise RateboundError(f"cannot write {file}: {error.strerror}") from None


def _write(
    report: ReplayReport, played: LogReplay, json_file: str | None, html_file: str | None, policy: str | None
) -> None:
    if "-" not in (json_file, html_file, policy):
        console = open_console()
        console.print(replay_page(report))
    if json_file is not None:
        _put(json_file, report_json(report))
    if html_file is not None:
        _put(html_file, report_html(report))
    if policy is not None and report.suggestion is not None:
        try:
            text = policy_text(report.suggestion, first=played.first, last=played.last, requests=played.requests)
        except ValueError as error:
            raise RateboundError(str(error)) from None
        _put(policy, text)


def _put(file: str, text: str) -> None:
    if file == "-":
        click.echo(text.rstrip("\n"))
    else:
        Path(file).write_text(text, "utf-8", errors="backslashreplace")


@contextmanager
def _progress(reader: LogReader, *, quiet: bool) -> Iterator[Callable[[], None] | None]:
    """Show lines, lines per second and the time that is left, on stderr if it is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=reader.bytes_total)

        def show() -> None:
            seconds = bar.tasks[0].elapsed or 0.001
            speed = reader.lines / seconds
            bar.update(task, completed=reader.bytes_read, description=f"{reader.lines:,} lines, {speed:,.0f}/s")

        yield show
