"""The flags that commands share, made from one table; what options hold; what completes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from edcache.base import NBYTES, Codec, OnError, ReadOptions
from edcache.interop import Kind

_ABOVE_0: Final = click.FloatRange(min=0, min_open=True)
_DECODED: Final = click.Choice(["pil", "numpy", "tensor"])
_SECONDS: Final = {"h": 3600, "d": 86_400, "w": 604_800}
Command = TypeVar("Command", bound=Callable[..., Any])


class _Path(click.Path):
    """The path of an archive, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


class _NameAtPath(click.types.StringParamType):
    """A name in the archive of the line: of a label column, or where that is wanted of a field.

    Shells complete the last word of what was typed.
    """

    def __init__(self, kind: str = "labels") -> None:
        self._kind = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # Where the option to complete is the last word, click leaves the words before it in `args`.
        paths = [ctx.params.get("path"), *(ctx.params.get("paths") or ()), *ctx.args]
        path = next(filter(None, paths), None)
        try:
            names = [] if path is None else list(_names_at(path, self._kind))
        except Exception:  # noqa: BLE001 - no archive, a damaged one: a shell at a prompt wants no message
            return []
        head = re.sub(r"[\w.-]*$", "", incomplete)
        # A name is typed for the user, so it must be one that no shell runs.
        safe = (name for name in names if re.fullmatch(r"[\w.][\w.-]*", name))
        return [CompletionItem(head + name) for name in safe if (head + name).startswith(incomplete)]


def _names_at(path: str, kind: str) -> Iterable[Any]:
    """The label columns or the fields of an archive on a disk; a server is not asked at each key."""
    if "://" in path:
        return []
    from edcache import display, writer

    summary = display.summary(writer.store_at(path).reader(ReadOptions(allow_partial=True)))
    if kind == "labels":
        return list(summary["labels"])
    return dict.fromkeys(field["path"] for schema in summary["schemas"] for field in schema["fields"])


PATH: Final = _Path()
PATHS: Final = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
FOLDER: Final = _Path(file_okay=False)
LABEL: Final = _NameAtPath()
FIELD: Final = _NameAtPath("fields")
POSITIVE: Final = click.IntRange(min=1)
COUNT: Final = click.IntRange(min=0)


def _quantity(units: Mapping[str, int], examples: str) -> Callable[..., int | None]:
    """Reads an option's number with its unit, which must be there: to some 200 is bytes, to others GB."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.lower(), re.ASCII)
        if match is None or match[2] not in units:
            raise click.BadParameter(f'"{text}"; write a number with its unit, as in {examples}')
        return int(float(match[1]) * units[match[2]])

    return read


size: Final = _quantity(NBYTES, "500MB, 1.5GB or 1TiB")
duration: Final = _quantity(_SECONDS, "12h, 30d or 8w")


def _workers(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit():
        raise click.UsageError(f"--num-workers {text}: give a number, or auto")
    return int(text)


def _label_keys(
    ctx: click.Context, param: click.Parameter, keys: tuple[str, ...]
) -> list[str] | dict[str, str] | None:
    """What --key asks for, as `in_memory_keys` takes it."""
    for key in keys:
        if not all(key.split("=", 1)):
            raise click.BadParameter(f'"{key}"; write a field, as in label, or NAME=FIELD')
    if not any("=" in key for key in keys):
        return list(keys) or None
    split = [key.partition("=") for key in keys]
    return {name: path if equals else name for name, equals, path in split}


# A flag that stands for the argument's False.
_DENIES: Final[dict[str, Any]] = {"is_flag": True, "callback": lambda _, __, given: False if given else None}
_Option: TypeAlias = "tuple[tuple[str, ...], dict[str, Any]]"


def _flag(name: str, help: str, *words: str, **details: Any) -> tuple[str, _Option]:
    """An option by the name of the argument that it becomes; without other words that is its own too."""
    return name, (words or (f"--{name.replace('_', '-')}",), {"help": help, **details})


_FLAGS: Final[dict[str, _Option]] = dict(
    [
        _flag("added", "Add a column; repeatable.", "--add", multiple=True, metavar="[NAME=]FILE", type=PATH),
        _flag("dropped", "Drop a column; repeatable.", "--drop", multiple=True, metavar="NAME", type=LABEL),
        _flag("allow_partial", "Take an archive as it is that is not sealed.", is_flag=True),
        _flag("allow_pickle", "Read pickles, which run whatever code their author chose.", is_flag=True),
        _flag("arguments", "An argument; repeatable.", "--arg", multiple=True, metavar="NAME=VALUE"),
        _flag("as_json", "One JSON document instead of text.", "--json", is_flag=True),
        _flag("chunk_size", "Most samples that one publication holds.", metavar="N", type=POSITIVE),
        _flag("codec", "native by default.", type=click.Choice(get_args(Codec))),
        _flag("compression", "zstd or zstd:19; none by default.", metavar="TEXT"),
        _flag("available", "Leave out samples that have no record.", is_flag=True),
        _flag("decode", "What readers get unless they choose: pil.", type=_DECODED, default="pil"),
        _flag("fields", "Only this field; repeatable.", "--field", multiple=True, metavar="NAME", type=FIELD),
        _flag("labels", "Only this label; repeatable.", "--label", multiple=True, metavar="NAME", type=LABEL),
        _flag("no_labels", "No label columns but those that are fields.", is_flag=True),
        _flag("shard_size", "About so large is a shard: 500MB.", metavar="SIZE", callback=size),
        _flag("expected_digest", "The SHA-256 that the archive must have.", "--digest", metavar="DIGEST"),
        _flag("extensions", "Files that count; repeatable.", "--extension", multiple=True, metavar=".EXT"),
        _flag("form", "The rows as CSV.", "--csv", flag_value="csv"),
        _flag("grow", "Add to an archive whose source has become longer.", is_flag=True),
        _flag(
            *("in_memory_keys", "A label column; repeatable. import takes those of OLD by default.", "--key"),
            multiple=True,
            metavar="[NAME=]FIELD",
            callback=_label_keys,
        ),
        _flag("keep_existing", "Build anew, in the place of what is there.", "--rebuild", **_DENIES),
        _flag(
            "kind", "What OLD is; by default it is recognised.", "--from", type=click.Choice(get_args(Kind))
        ),
        _flag("limit", "Most rows shown; 20 by default on a terminal.", metavar="N", type=COUNT),
        _flag(
            "num_workers",
            "Processes that compute; -j alone, or auto: one for each processor that this process may use.",
            *("-j", "--num-workers"),
            metavar="[N]",
            is_flag=False,
            flag_value="auto",
            callback=_workers,
        ),
        _flag("on", "The column that says of which sample a row of FILE is.", metavar="NAME", type=LABEL),
        _flag("on_error", "What becomes of a sample that fails.", type=click.Choice(get_args(OnError))),
        _flag("order", "For monai: the file names in order, one a line.", metavar="FILE", type=PATH),
        _flag("progress", "Show a bar; by default on a terminal.", "--progress/--no-progress", default=None),
        _flag("show_all", "All rows, on a terminal too.", "--all", is_flag=True),
        _flag("skip_damaged", "Leave out samples that are damaged or missing.", is_flag=True),
        _flag("timeout", "Seconds for one sample.", metavar="SECONDS", type=_ABOVE_0),
        _flag("trust_pickle", "Unpickle whatever OLD holds, which runs code its author chose.", is_flag=True),
        _flag("version", "Change it when the factory makes other samples.", metavar="VALUE"),
        _flag("where", "Only samples whose labels fulfil this.", metavar="EXPR", type=LABEL),
    ]
)
_FORMS: Final = click.option("--jsonl", "form", flag_value="jsonl", help="The rows as JSON, one a line.")


def flags(*names: str) -> Callable[[Command], Command]:
    """Options that commands share, by the names of their arguments, in the order of the help."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            words, details = _FLAGS[name]
            command = click.option(*words, name, **details)(command)
        return command

    return decorate


def row_flags(command: Command) -> Command:
    """The flags of a command that prints rows, which `output.print_rows` takes."""
    return flags("limit", "show_all", "form")(_FORMS(command))


def output(help: str = "The archive to fill.", **details: Any) -> Callable[[Command], Command]:
    """Where a command writes."""
    defaults: dict[str, Any] = {"required": True, "metavar": "PATH", "type": PATH}
    return click.option("-o", "--output", "output", help=help, **defaults | details)


def flag_of(option: str | None) -> str | None:
    """Return the flag of an option of the library: that of keep_existing is --rebuild."""
    return _FLAGS[option][0][-1] if option in _FLAGS else None
