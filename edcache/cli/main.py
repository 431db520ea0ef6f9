"""The group of all commands: an error is one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from itertools import chain
from typing import Any, Final

import click

from edcache import __version__
from edcache.base import suggestion
from edcache.cli import contents, conversion, housekeeping, maintenance, viewer
from edcache.cli.output import FAILED, errors_in_one_line
from edcache.storage import shown

# By what they are for, in the order of the help.
_COMMANDS: Final[dict[str, tuple[click.Command, ...]]] = {
    "Make": (conversion.build, conversion.images, conversion.import_),
    "Look": (
        *(contents.info, contents.show, viewer.view, contents.ls, contents.labels),
        housekeeping.why,
    ),
    "Check": (maintenance.verify, maintenance.digest),
    "Share": (conversion.export, maintenance.copy),
    "Tidy": (housekeeping.caches,),
}


def _hint(word: str, names: list[str]) -> str:
    """Suggest a command for a word that is none: a path, a folder, a slip."""
    if "://" in word or os.path.isfile(word):
        return f"; give a command first: edcache info {word}, or edcache view {word}"
    return f"; edcache caches {word} lists this folder" if os.path.isdir(word) else suggestion(word, names)


class _Commands(click.Group):
    """A group whose commands end in one line for an error, with the exit codes of `edcache --help`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for."""
        for title, commands in _COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(str(one.name), one.get_short_help_str(66)) for one in commands])

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        # Bars and labels may have letters that the terminal has not.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        with errors_in_one_line(FAILED):
            return super().make_context(*arguments, **options)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, names = shown(args[0]), self.list_commands(ctx)
        if name == "help" and not ctx.resilient_parsing:
            if args[1:]:
                return self.resolve_command(ctx, [args[1], "--help"])
            click.echo(ctx.get_help())
            ctx.exit()
        if not (name in names or name.startswith("-") or ctx.resilient_parsing):
            ctx.fail(f'no command "{name}"{_hint(name, names)}')
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with errors_in_one_line(FAILED):
            return super().invoke(ctx)


@click.group(
    "edcache",
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="edcache", message="%(prog)s %(version)s")
def main() -> None:
    """Build, look into, check and clear away edcache archives.

    An archive is one zip file with the samples of a dataset. build, images and import fill one, labels --add
    and --drop change its labels, copy brings it here or makes a new one of its samples, caches --prune
    deletes. Every other command only reads it, and works on an archive that is still growing. The commands
    that look, verify and copy take URLs too; their credentials come from the environment, as each engine has
    it (AWS_*, FSSPEC_S3, and so on).

    A command that reports prints one JSON document with --json. One that lists rows prints CSV with --csv,
    and an object a line with --jsonl.

    \b
    Exit codes:
      0    success
      1    failure, an archive that is not sound, or one of another call
      2    wrong usage
      130  interrupted

    \b
    Environment:
      EDCACHE_DIR=DIR     where caches without a path live (~/.cache/edcache)
      EDCACHE_DEBUG=1     show the traceback of an error
      EDCACHE_PROGRESS=0  no progress (1: bars always)
      NO_COLOR=1          no colours on a terminal

    \b
    Completion of commands, options, files and labels, in ~/.bashrc (zsh_source and fish_source work too):
      eval "$(_EDCACHE_COMPLETE=bash_source edcache)"

    \b
    Example:
      edcache info train.zip
    """


for _command in chain.from_iterable(_COMMANDS.values()):
    main.add_command(_command)
