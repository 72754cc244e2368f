"""Groups of commands that name the commands nearest to a mistyped one."""
from collections.abc import Mapping

import click

from geminga.supervisor.configuration.nearest import question

STATUS = "Exit status: 0 done; 1 refused by the broker; 2 wrong usage; 3 not reachable."      # end of a help text


class Group(click.Group):
    """A click group that suggests names for unknown commands, and prints its help if none is given."""

    aliases: Mapping[str, str] = {}       # other names of commands, which lists leave out

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words behind the group's name; without any, print the help as --help does."""
        is_help = not args and self.no_args_is_help and not ctx.resilient_parsing
        return super().parse_args(ctx, ["--help"] if is_help else args)

    def resolve_command(self, ctx: click.Context,
                        args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(f"There is no command {name!r}.{question(name, [*self.list_commands(ctx), *self.aliases])}")
        return super().resolve_command(ctx, args)
