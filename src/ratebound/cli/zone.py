"""The command `ratebound zone`: show, list and drop the zones of shared memory (`shm://name`)."""

import json
import os
import pwd
from collections.abc import Iterator
from typing import Any

import click
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from ratebound.cli.app import open_console
from ratebound.cli.command_group import CommandGroup
from ratebound.cli.exit_status import errors_told
from ratebound.cli.policy import FORMAT
from ratebound.cli.words import number
from ratebound.storage.shared_memory.layout import MOST_SIZE
from ratebound.storage.shared_memory.storage import read_url
from ratebound.storage.shared_memory.zone_file import ZoneName, drop_zone, shown_size, zone_name
from ratebound.storage.shared_memory.zone_report import ZoneReport, no_zone, report_of, zones_in

DIRECTORY = click.option("--directory", metavar="DIR", help="The directory of the zone; by default that of shm://NAME.")
JSON = click.option("--json", "shape", flag_value="json", help="The same as --format json.")


@click.group(cls=CommandGroup, short_help="Show, list and drop zones of shared memory.")
def zone() -> None:
    """Show, list and drop the zones in which the processes of this host count together: shm://NAME.

    \b
    Examples:
      ratebound zone list
      ratebound zone show api
    """


@zone.command(short_help="Show how full a zone is, and which locks are held.")
@click.argument("name")
@DIRECTORY
@FORMAT
@JSON
def show(name: str, directory: str | None, shape: str) -> None:
    """Show the size of zone NAME, how full it is, what it had to drop, and which of its locks are held now.

    Nothing is changed and no lock is taken, so programs that use the zone do not wait. Counts may be off by the states
    that are being written meanwhile. Root may show the zones of all users.

    NAME may also be the URL of the storage.

    \b
    Examples:
      ratebound zone show api
      ratebound zone show shm://api --json
    """
    with errors_told(values=True):
        report = report_of(_named(name, directory))
        if shape == "json":
            click.echo(json.dumps(_document(report), ensure_ascii=False, indent=2))
        else:
            _show(report)


@zone.command("list", short_help="List the zones of this host.")
@DIRECTORY
@FORMAT
@JSON
def list_zones(directory: str | None, shape: str) -> None:
    """List the names of the zones that you may read.

    \b
    Examples:
      ratebound zone list
      ratebound zone list --json
    """
    with errors_told(values=True):
        where = zone_name("any", directory).directory
        names = zones_in(where)
        if shape == "json":
            click.echo(json.dumps(names))
        else:
            click.echo("\n".join(names) if names else f"there are no zones in {where}")


@zone.command(short_help="Drop a zone with all of its counts.")
@click.argument("name")
@DIRECTORY
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drop(name: str, directory: str | None, yes: bool) -> None:
    """Drop zone NAME with all counts, blocks and documents in it.

    Programs that use the zone go on with a new one, which their next request makes. In the new one nothing has been
    counted yet, no slot is taken and nobody is blocked. Programs of another version do not notice the drop: stop them
    first.

    \b
    Examples:
      ratebound zone drop api
      ratebound zone drop api --yes
    """
    with errors_told(values=True):
        found = _named(name, directory)
        name = found.name
        if not os.path.lexists(found.path):
            raise no_zone(found)
        if not yes:
            click.confirm(
                f"Drop zone {name!r} in {found.directory}, with all counts, blocks and documents in it? Programs that"
                " use it go on with a new one, in which nothing has been counted.",
                abort=True,
            )
        if drop_zone(found):
            click.echo(f"zone {name!r} is dropped: programs that used it go on with a new one")
        else:
            click.echo(
                f"zone {name!r} is dropped. It was of another version, or damaged, so programs that use it could not be"
                " told: start them again"
            )


def _named(name: str, directory: str | None) -> ZoneName:
    """Return the zone that was meant by a name, or by the URL of a storage. Raises ValueError."""
    if name.startswith("shm://"):
        url = read_url(name)
        name, directory = url["name"], directory or url.get("directory")
    return zone_name(name, directory)


def _document(report: ZoneReport) -> dict[str, Any]:
    document = report._asdict()
    holders = report.holders
    document["user"] = _user(report.owner)
    document["fill"] = round(_share(report.used, report.cells), 2)
    document["fill_of_blocks"] = round(_share(report.used_blocks, report.blocks), 2)
    document["marks"] = [mark._asdict() for mark in report.marks]
    document["holders"] = None if holders is None else [holder._asdict() for holder in holders]
    return document


def _show(report: ZoneReport) -> None:
    cells = f"{number(report.cells)}, {number(report.used)} used ({_share(report.used, report.cells):.1f} %)"
    blocks = f"{number(report.blocks)}, {number(report.used_blocks)} used"
    table = Table(box=SIMPLE, pad_edge=False, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    for row in (
        ("zone", report.name),
        ("directory", report.directory),
        ("owner", _user(report.owner)),
        ("size", shown_size(report.size)),
        ("version", str(report.version)),
        ("locks", report.locks),
        ("cells", f"{cells}: one for each key and limit"),
        ("expired cells", f"{number(report.expired)} of the used ones; new keys take them"),
        ("blocks", f"{blocks} ({_share(report.used_blocks, report.blocks):.1f} %): for states with many entries"),
        ("evicted", f"{number(report.evicted)} states that did not deny were dropped to make room"),
        ("overflowed", f"{number(report.overflowed)} checks of new keys that found no room"),
        ("repaired", f"{number(report.repaired)} times after a process was killed"),
        ("documents", str(report.documents)),
        ("locks held now", _held(report)),
        ("marked shards", "; ".join(f"{mark.shard}: {mark.text}" for mark in report.marks) or "none"),
    ):
        table.add_row(*map(Text, row))
    open_console().print(table)
    for advice in _advice(report):
        click.echo(advice)


def _held(report: ZoneReport) -> str:
    if report.holders is None:
        return "this kind of locks does not tell"
    held = []
    for holder in report.holders:
        process = f"process {holder.process}" if holder.process else "a process of another container"
        held.append(f"{holder.shard}: {process}{', which is stopped' if holder.is_stopped else ''}")
    return "; ".join(held) or "none"


def _advice(report: ZoneReport) -> Iterator[str]:
    if report.is_old:
        yield "This zone is from before the last start of the system. The next program that opens it makes it anew."
    if report.overflowed or report.evicted:
        larger = f", for example size={report.size >> 19}mb" if report.size < MOST_SIZE else ""
        yield f"The zone was full. Use a larger one: stop its programs, drop it, and start them with more{larger}."
    held = {holder.shard for holder in report.holders or ()}
    if any(mark.shard not in held and mark.text != "the zone is dropped" for mark in report.marks):
        yield "A mark without a lock is of a process that was killed. The next process that uses the shard repairs it."
    if any(holder.is_stopped for holder in report.holders or ()):
        yield "A stopped process keeps its lock. The failure mode answers for keys of that shard: resume or end it."


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _user(owner: int) -> str:
    try:
        return f"{pwd.getpwuid(owner).pw_name} ({owner})"
    except KeyError:
        return str(owner)
