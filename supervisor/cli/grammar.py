"""Groups of commands that name the commands nearest to a mistyped one."""
from collections.abc import Mapping

import click

from geminga.storage.runtime.similar_names import question

STATUS = "Exit status: 0 done; 1 refused by the broker; 2 wrong usage; 3 not reachable."      # end of a help text


class Group(click.Group):
    """A click group that suggests names for unknown commands, and prints its help if none is given."""

    aliases: Mapping[str, str] = {}       # other names of commands, which lists leave out
    elsewhere: Mapping[str, str] = {}     # words of other tools, with the command that does the same here

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words behind the group's name; without any, print the help as --help does."""
        is_help = not args and self.no_args_is_help and not ctx.resilient_parsing
        return super().parse_args(ctx, ["--help"] if is_help else args)

    def resolve_command(self, ctx: click.Context,
                        args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(f"There is no command {name!r}.{self.hint(ctx, name)}")
        return super().resolve_command(ctx, args)

    def hint(self, context: click.Context, name: str) -> str:
        """Return a question for the commands that an unknown one may mean, "" if none is known."""
        if meant := self.elsewhere.get(name):
            return f"  Did you mean {meant}?"
        return question(name, [*self.list_commands(context), *self.aliases])
