"""The command `ratebound loadtest`: send a load to a server, and prove that it keeps its limits."""

import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn
from rich.progress import Progress as ProgressBar

from ratebound.cli.app import open_console
from ratebound.cli.exit_status import MISTAKE, errors_told
from ratebound.cli.parameters import FILE
from ratebound.limit import limit_set
from ratebound.loadtest.arrivals import Arrivals, parse_arrivals, parse_rate
from ratebound.loadtest.assertion import parse_assertion
from ratebound.loadtest.cost import limit_in_requests
from ratebound.loadtest.identities import ASSIGNMENTS, Clients, IdentityMark, parse_identity
from ratebound.loadtest.judge import REFUSED
from ratebound.loadtest.plan import LoadPlan, LoadTarget
from ratebound.loadtest.progress import Progress
from ratebound.loadtest.report import LoadReport, make_report, milliseconds, report_json, summary
from ratebound.loadtest.report_html import report_html
from ratebound.loadtest.run import LoadRun, run_load_here
from ratebound.notation import parse_limits, parse_span

MAX_RATE = 20_000.0  # guards against typing errors
COLOURS = {"PASS": "bold green", "FAIL": "bold red", "UNKNOWN": "bold yellow"}


@click.command(short_help="Send a load to a server, and prove that it keeps its limits.")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--rate", metavar="RATE", help="Requests per second: 150/s, 600/minute, or 'poisson 150/s'.")
@click.option("--ramp", metavar="FROM..TO", help="A rate that changes evenly, instead of --rate: 10/s..200/s.")
@click.option("--burst", metavar="'N every TIME'", help="Bursts, instead of --rate: '50 every 5s'.")
@click.option("--for", "duration", metavar="TIME", default="30s", help="How long: 30s, 2m, 500ms.")
@click.option("--clients", type=click.IntRange(1), default=1, metavar="NUMBER", help="The number of clients.")
@click.option(
    "--identity",
    "identities",
    multiple=True,
    metavar="KIND",
    help="How the server tells clients apart: 'header:X-Api-Key=key-{n}', 'query:key=key-{n}', 'bearer:@tokens.txt',"
    " 'forwarded' (X-Forwarded-For) or 'source' (127.0.0.2, …; the default for several clients on loopback).",
)
@click.option(
    "--assign",
    type=click.Choice(ASSIGNMENTS),
    default="round-robin",
    help="How requests are distributed to clients.",
)
@click.option(
    "--limit",
    "limit_text",
    metavar="LIMITS",
    help="The limit that the server should keep: '100/minute'. Without it, the limit of its headers.",
)
@click.option(
    "--cost",
    type=click.IntRange(1, 1_000_000),
    default=1,
    metavar="UNITS",
    help="The units that the server charges for each request.",
)
@click.option("--shared", is_flag=True, help="All clients share the limit.")
@click.option(
    "--refused",
    type=click.IntRange(400, 599),
    multiple=True,
    metavar="STATUS",
    help="The status of a refusal, if it is not 429.",
)
@click.option("--method", default="GET", metavar="METHOD", help="The method of every request.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header of every request.")
@click.option("--body", default="", show_default=False, metavar="TEXT", help="The body of every request, or @FILE.")
@click.option("--http2", is_flag=True, help="Speak HTTP/2: negotiated by TLS, or without negotiation on http://.")
@click.option("--obey", is_flag=True, help="Refused clients wait as Retry-After says, and then send one probe.")
@click.option(
    "--probe-within", metavar="TIME", help="How long to wait for probes after the end of the load. Implies --obey."
)
@click.option("--timeout", default="10s", metavar="TIME", help="The longest wait for an answer.")
@click.option("--seed", type=int, default=0, metavar="NUMBER", help="The seed of all random choices, to repeat a test.")
@click.option("--assert", "asserted", multiple=True, metavar="BOUND", help="Fail unless this holds: 'p99<50ms'.")
@click.option("--json", "json_file", type=FILE, help="Write JSON; - is stdout.")
@click.option("--html", "html_file", type=FILE, help="Write a page with pictures.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--allow-remote", is_flag=True, help="Send the load to another machine. It must be yours.")
@click.option("--ca", "--ca-file", "ca_file", type=FILE, help="The certificates to trust, for an https URL.")
@click.option("--insecure", is_flag=True, help="Do not verify certificates; on loopback only.")
@click.option("--max-rate", metavar="RATE", help="Allow a higher rate than 20000/s.")
def loadtest(
    urls: tuple[str, ...],
    rate: str | None,
    ramp: str | None,
    burst: str | None,
    duration: str,
    clients: int,
    identities: tuple[str, ...],
    assign: str,
    limit_text: str | None,
    cost: int,
    shared: bool,
    refused: tuple[int, ...],
    method: str,
    headers: tuple[str, ...],
    body: str,
    http2: bool,
    obey: bool,
    probe_within: str | None,
    timeout: str,
    seed: int,
    asserted: tuple[str, ...],
    json_file: str | None,
    html_file: str | None,
    quiet: bool,
    allow_remote: bool,
    ca_file: str | None,
    insecure: bool,
    max_rate: str | None,
) -> None:
    """Send a load to URL, and tell whether the server kept its limit, for each client, and told the truth about it.

    Requests are sent on a schedule that never waits for answers. The expected limit is that of --limit, else what the
    server's headers say. Only this machine can be tested, unless --allow-remote is given.

    Exit status: 0 no check failed, 1 a check failed, 2 wrong usage or a report that cannot be written, 3 the test
    cannot tell whether the limit was kept, 130 stopped by pressing Ctrl-C twice.

    \b
    Examples:
      ratebound loadtest http://127.0.0.1:8000/ --rate 150/s --for 30s --clients 20
      ratebound loadtest http://127.0.0.1:8000/ --rate 50/s --limit "100/minute" --html report.html
    """
    with errors_told(values=True, unwritten=MISTAKE):
        load, arrivals = _load(rate, ramp, burst, parse_span(duration), seed)
        limits = limit_set(parse_limits(limit_text)) if limit_text is not None else ()
        for limit in limits:
            limit_in_requests(limit, cost)  # a limit that cannot be judged is found before the test
        assertions = [parse_assertion(text) for text in asserted]
        plan = LoadPlan(
            targets=[LoadTarget(url, method.upper(), _headers(headers), _body(body)) for url in urls],
            arrivals=arrivals,
            clients=Clients(clients, _marks(identities, clients, urls), assign),
            seed=seed,
            timeout=parse_span(timeout),
            http2=http2,
            obey=obey or probe_within is not None,
            probe_within=parse_span(probe_within) if probe_within is not None else 0.0,
            allow_remote=allow_remote,
            ca_file=ca_file,
            insecure=insecure,
            max_rate=MAX_RATE if max_rate is None else parse_rate(max_rate),
        )
        for file in (json_file, html_file):
            if file not in (None, "-"):
                Path(str(file)).open("a").close()  # a file that cannot be written is found before the test
        if allow_remote:
            click.echo(f"--allow-remote: sending {load} to {', '.join(_hosts(plan))}. Test only your own.", err=True)
        run = _run(plan, quiet=quiet)
        report = make_report(
            run,
            limits=limits,
            shared=shared,
            refused=frozenset(refused) or REFUSED,
            assertions=assertions,
            load=load,
            cost=cost,
        )
        _write(report, json_file, html_file)
    sys.exit(report.exit_status)


def _load(rate: str | None, ramp: str | None, burst: str | None, duration: float, seed: int) -> tuple[str, Arrivals]:
    """Return the load in words, and its schedule. Exactly one of the three is given."""
    given = [text for text in (rate, ramp, burst) if text is not None]
    if len(given) != 1:
        raise ValueError("give one of --rate 150/s, --ramp 10/s..200/s and --burst '50 every 5s'")
    if burst is not None:
        return f"bursts of {burst} for {duration:g} s", parse_arrivals(f"burst {burst}", duration, seed=seed)
    if ramp is not None and ".." not in ramp:
        raise ValueError(f"cannot read ramp {ramp[:80]!r}: expected for example '10/s..200/s'")
    return f"{given[0]} for {duration:g} s", parse_arrivals(given[0], duration, seed=seed)


def _marks(identities: Sequence[str], clients: int, urls: Sequence[str]) -> list[IdentityMark]:
    """Return how clients are told apart: by their addresses if nothing is given and the server is on loopback."""
    if identities or clients == 1:
        return [parse_identity(text) for text in identities]
    hosts = [LoadTarget(url).origin.host for url in urls]
    if sys.platform == "linux" and all(map(_is_local, hosts)):
        return [IdentityMark("source")]
    raise ValueError(
        f"how does the server tell {clients} clients apart? Give --identity, for example"
        " --identity 'header:X-Api-Key=key-{n}'"
    )


def _is_local(host: str) -> bool:
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _headers(headers: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for header in headers:
        name, found, value = header.partition(":")
        if not found:
            raise ValueError(f"cannot read the header {name[:40]!r}: expected for example 'Accept: text/html'")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _body(text: str) -> bytes:
    return Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()


def _hosts(plan: LoadPlan) -> list[str]:
    return list(dict.fromkeys(target.origin.authority for target in plan.targets))


def _run(plan: LoadPlan, *, quiet: bool) -> LoadRun:
    """Send the load, with a line of progress on a terminal."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        return run_load_here(plan)
    columns: list[ProgressColumn] = [
        TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
        BarColumn(30),
        TextColumn("{task.description}"),
    ]
    with ProgressBar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("connecting", total=plan.arrivals.duration)
        return run_load_here(plan, on_progress=lambda progress: _show_progress(bar, task, progress))


def _show_progress(bar: ProgressBar, task: TaskID, progress: Progress) -> None:
    statuses = "  ".join(f"{status}: {many:,}" for status, many in sorted(progress.statuses.items()))
    errors = "  ".join(f"[red]{kind}: {many:,}[/]" for kind, many in sorted(progress.errors.items()))
    words = f"{progress.rate:,.0f}/s  {statuses}  {errors}  p99 {milliseconds(progress.p99)}"
    bar.update(task, completed=min(progress.elapsed, progress.duration), description=words)


def _write(report: LoadReport, json_file: str | None, html_file: str | None) -> None:
    if html_file is not None:
        Path(html_file).write_text(report_html(report), "utf-8")
    if json_file == "-":
        click.echo(report_json(report))
        return
    if json_file is not None:
        Path(json_file).write_text(report_json(report) + "\n", "utf-8")
    console = open_console()
    for line in summary(report).splitlines():
        first = line.partition(" ")[0].rstrip(":")
        shown = escape(line)
        if first in COLOURS:
            shown = f"[{COLOURS[first]}]{first}[/]{escape(line[len(first) :])}"
        console.print(shown, soft_wrap=True)
    if html_file is not None:
        console.print(f"The report with pictures is in {escape(html_file)}", soft_wrap=True)
