"""``nilometer completion``: the script with which a shell completes the command's words."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from nilometer.cli import commands

PROGRAM = "nilometer"
VARIABLE = "_NILOMETER_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@commands.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    bash: eval "$(nilometer completion bash)"             in ~/.bashrc; bash 4.4 or newer
    zsh:  eval "$(nilometer completion zsh)"              in ~/.zshrc, after compinit
    fish: nilometer completion fish > ~/.config/fish/completions/nilometer.fish
    """
    root = click.get_current_context().find_root().command
    maker = SHELLS[shell](root, {}, PROGRAM, VARIABLE)
    # Not maker.source(): for bash it starts one to learn its version, and this one may not be the user's.
    click.echo(maker.source_template % maker.source_vars())
