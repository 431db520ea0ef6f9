"""Group of all commands: an error is one line and an exit code."""

from __future__ import annotations

import io
import sys
from typing import Any

import click

from edcache import __version__
from edcache.cli import build, look, tidy
from edcache.cli.output import errors_in_one_line


class _Commands(click.Group):
    """Group whose commands end in one line for an error, with the exit codes of `edcache --help`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands as they were added: make archives, look, check, share, tidy."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        # Labels may have letters that the terminal lacks.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with errors_in_one_line(ctx):
            return super().invoke(ctx)


@click.group(
    "edcache",
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="edcache", message="%(prog)s %(version)s")
def main() -> None:
    """Build, show, check, copy and delete edcache archives.

    An archive is one zip file with the samples of a dataset. advise says whether one would help. build, images and
    import fill one, copy fetches it or makes a new one of its samples, caches --prune deletes. All other commands only
    read it, also while it grows.
    Commands that show, verify and copy take URLs too; credentials come from the environment, as each engine reads it
    (AWS_*, FSSPEC_S3, and so on).

    With --json a command prints one JSON document; a command that lists rows prints CSV with --csv.

    \b
    Exit codes:
      0    success
      1    failure, or an archive that is not sound
      2    wrong usage
      130  interrupted

    \b
    Environment:
      EDCACHE_DIR=DIR     caches without a path, copies of URLs (~/.cache/edcache)
      EDCACHE_DEBUG=1     show the traceback of an error
      EDCACHE_PROGRESS=0  no progress (1: bars always)

    \b
    Completion, in ~/.bashrc (zsh_source and fish_source work too):
      eval "$(_EDCACHE_COMPLETE=bash_source edcache)"

    \b
    Example:
      edcache info train.zip
    """


for _command in (
    *(build.advise, build.build, build.images, build.import_),
    *(look.info, look.show, look.view, look.labels),
    *(tidy.verify, tidy.digest),
    *(tidy.copy, tidy.caches),
):
    main.add_command(_command)
