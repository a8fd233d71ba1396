"""The command `ratebound completion`: the script with which a shell completes `ratebound`."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the script that completes commands in your shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options, files and URLs of storages.

    \b
    bash  ratebound completion bash > ~/.local/share/bash-completion/completions/ratebound
    zsh   ratebound completion zsh > "${fpath[1]}/_ratebound"
    fish  ratebound completion fish > ~/.config/fish/completions/ratebound.fish

    Then start a new shell. For the current one: eval "$(ratebound completion bash)"

    \b
    Examples:
      ratebound completion bash
      ratebound completion fish
    """
    root = ctx.find_root()
    name = str(root.info_name)
    script = get_completion_class(shell)
    assert script is not None
    # The variable in which click looks for a request of a shell, by the name of the program.
    click.echo(script(root.command, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE").source())
