"""The group of all commands: an error is one line and an exit code; options and printing that they share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from edcache import __version__
from edcache.durable import hidden
from edcache.errors import EdcacheError
from edcache.present import one_line
from edcache.sizes import NBYTES
from edcache.suggestion import path_suggestion, suggestion

FAILED, INTERRUPTED = 1, 130
BLOCK: Final = 10_000


class _WrongUsage(click.ClickException):
    """A usage error in one line; click's own takes four."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"edcache: {self.message}", err=True)


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.1 has none, and prints the help
            raise
        command = error.ctx.command_path if error.ctx is not None else "edcache"
        message = one_line(error.format_message()).rstrip(".")
        raise _WrongUsage(f"{message} (see {command} --help)") from None


class _Commands(click.Group):
    """A group whose commands end in one line for an error, with the exit codes of `edcache --help`."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _usage_in_one_line():
            return super().make_context(*arguments, **options)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if not (args[0] in names or args[0].startswith("-") or ctx.resilient_parsing):
            ctx.fail(f'no command "{args[0]}"{suggestion(args[0], names)}')
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            click.echo(f"edcache: {stop.args[0] if stop.args else 'interrupted'}", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends quietly when nobody reads on
        except (EdcacheError, OSError) as error:
            if os.environ.get("EDCACHE_DEBUG", "0") not in ("", "0"):
                raise
            click.echo(f"edcache: {error_line(error)}", err=True)
            ctx.exit(FAILED)


def as_typed(text: str) -> str:
    """A text with the paths below the working folder as a person types them, from there on."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # it was deleted
        return text
    return text if here == os.sep else re.sub(rf"(?<![^\s\"'(]){re.escape(here)}", "", text)


def error_line(error: Exception) -> str:
    """What an error says, in one line, with what may help."""
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, EdcacheError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    text = as_typed(text)
    path, _, reason = text.partition(": ")
    if "no such" in reason.lower():
        text += path_suggestion(path)
    elif "not a regular file" in reason and os.path.isdir(path):
        text += f"; edcache caches {path} lists the archives in this folder"
    return one_line(text)


@click.group(
    "edcache",
    cls=_Commands,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="edcache", message="%(prog)s %(version)s")
@click.option("-d", "--dataset", hidden=True)
@click.option("-s", "--server", is_flag=True, hidden=True)
@click.option("-a", "--address", hidden=True)
@click.pass_context
def main(ctx: click.Context, dataset: str | None, server: bool, address: str | None) -> None:
    """Build, look into, check and clear away edcache archives.

    An archive is one zip file with the samples of a dataset. build, images and import fill one, labels --add
    and --drop change its labels, compact rewrites it, copy brings it here, rm and prune delete; every other
    command only reads it, and works on an archive that is still growing. repair, merge, split and export make
    new files. info, show, ls, labels, why and verify take URLs too; their credentials come from the
    environment, as each engine has it (AWS_*, FSSPEC_S3, and so on).

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

    \b
    Completion of commands, options and files, in ~/.bashrc (zsh_source and fish_source work too):
      eval "$(_EDCACHE_COMPLETE=bash_source edcache)"

    \b
    Example:
      edcache info train.zip
    """
    if ctx.invoked_subcommand is None:
        from edcache.cli.taking import as_edflow

        as_edflow(dataset, server, address)
    elif dataset is not None or server or address is not None:
        raise click.UsageError(f"-d, -s and -a are edflow's flags, and go without {ctx.invoked_subcommand}")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they come, many at a time."""
    remaining = iter(lines)
    while block := list(islice(remaining, BLOCK)):
        # color=True: click would take escape sequences out of labels that go into a file.
        click.echo("\n".join(block), color=True)


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=1))


def quantity(units: Mapping[str, int], examples: str) -> Callable[..., float | None]:
    """Reads an option's number with its unit, which must be there: to some 200 is bytes, to others GB."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.lower(), re.ASCII)
        if found is None or found[2] not in units:
            raise click.BadParameter(f'"{text}"; write a number with its unit, as in {examples}')
        return float(found[1]) * units[found[2]]

    return read


size: Final = quantity(NBYTES, "500MB, 1.5GB or 1TiB")


@contextmanager
def bar(doing: str, path: str, progress: bool | None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr over the bytes of a file, fed with (bytes done, bytes in all)."""
    said = os.environ.get("EDCACHE_PROGRESS")
    if progress is None:
        progress = said != "0" if said is not None else sys.stderr.isatty()
    if not progress:
        yield None
        return
    from edcache.durable import shown

    name = os.path.basename(shown(path))
    with click.progressbar(length=1, label=f"{doing} {name}", file=sys.stderr) as bar:

        def move(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield move


class _Path(click.types.StringParamType):
    """The path of an archive, or a URL; what is shown of that has no password. Shells complete it.

    Args:
        kind: "file" or "dir": what they offer.
    """

    def __init__(self, kind: str = "file") -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self._kind)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return hidden(str(value))


PATH: Final = _Path()
FOLDER: Final = _Path("dir")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
progress_option = click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default on a terminal."
)
pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Read pickles, which run whatever code their author chose."
)
partial_option = click.option(
    "--allow-partial", is_flag=True, help="Take an archive as it is that is not sealed."
)
argument_option = click.option(
    "--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument; repeatable."
)
