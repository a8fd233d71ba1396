"""Groups of commands that teach: commands in sections, and "did you mean" for a name that is not known."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click


class CommandGroup(click.Group):
    """A group of commands. `sections` are headings of its help with the names of the commands under each; commands that
    are in none of them come last, by name. `loaders` return commands that are added when they are needed."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections = {**(sections or {})}
        self.loaders: dict[str, Callable[[], click.Command]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        known = {*self.commands, *self.loaders}
        named = [name for names in self.sections.values() for name in names if name in known]
        return [*named, *sorted(known.difference(named))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; None if there is none."""
        if cmd_name not in self.commands and cmd_name in self.loaders:
            self.add_command(self.loaders[cmd_name]())
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was named. An unknown one is a mistake, and the message has what was probably meant;
        click says that since 8.3 only."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            near = get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Run: {ctx.command_path} --help"
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, each under its heading, with one width for all."""
        commands = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        if not commands:
            return
        others = [name for name in commands if not any(name in section for section in self.sections.values())]
        width = max(map(len, commands))
        for heading, section in {**self.sections, "Commands": others}.items():
            rows = [
                (name.ljust(width), commands[name].get_short_help_str(formatter.width - width - 6))
                for name in section
                if name in commands and not commands[name].hidden
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
