"""The flags that commands share, made from one table; what options hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from edcache.base import NBYTES, Codec, IfFilling, OnError
from edcache.storage import hidden

_SECONDS: Final = {"h": 3600, "d": 86_400, "w": 604_800}
Command = TypeVar("Command", bound=Callable[..., Any])


class _Path(click.types.StringParamType):
    """The path of an archive, or a URL; what is shown of that has no password. Shells complete it."""

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
POSITIVE: Final = click.IntRange(min=1)


def _quantity(units: Mapping[str, int], examples: str) -> Callable[..., float | None]:
    """Reads an option's number with its unit, which must be there: to some 200 is bytes, to others GB."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.lower(), re.ASCII)
        if match is None or match[2] not in units:
            raise click.BadParameter(f'"{text}"; write a number with its unit, as in {examples}')
        return float(match[1]) * units[match[2]]

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
    if not any("=" in key for key in keys):
        return list(keys) or None
    split = [key.partition("=") for key in keys]
    return {name: path if equals else name for name, equals, path in split}


def _flag(name: str, help: str, *words: str, **details: Any) -> tuple[str, Callable[..., Any]]:
    """An option by the name of the argument that it becomes; without other words that is its own too."""
    return name, click.option(*(words or (f"--{name.replace('_', '-')}",)), name, help=help, **details)


_FLAGS: Final = dict(
    [
        _flag("allow_partial", "Take an archive as it is that is not sealed.", is_flag=True),
        _flag("allow_pickle", "Read pickles, which run whatever code their author chose.", is_flag=True),
        _flag("arguments", "An argument; repeatable.", "--arg", multiple=True, metavar="NAME=VALUE"),
        _flag("as_json", "One JSON document instead of text.", "--json", is_flag=True),
        _flag(
            *("check_space", "Fill although the disk seems too small.", "--no-space-check"),
            is_flag=True,
            callback=lambda ctx, param, is_off: False if is_off else None,
        ),
        _flag("chunk_size", "Most samples that one publication holds.", type=POSITIVE),
        _flag("codec", "native by default.", type=click.Choice(get_args(Codec))),
        _flag("compression", "zstd, zstd:19 or zstd+dict; none by default.", metavar="TEXT"),
        _flag("grow", "Add to an archive whose source has become longer.", is_flag=True),
        _flag("if_filling", "When another process fills it: join.", type=click.Choice(get_args(IfFilling))),
        _flag(
            *("in_memory_keys", "A label column; repeatable. import takes those of OLD by default.", "--key"),
            multiple=True,
            metavar="[NAME=]FIELD",
            callback=_label_keys,
        ),
        _flag(
            "num_workers",
            "Processes that compute; -j alone, or auto: one for each processor that this process may use.",
            *("-j", "--num-workers"),
            metavar="[N]",
            is_flag=False,
            flag_value="auto",
            callback=_workers,
        ),
        _flag("on_error", "What becomes of a sample that fails.", type=click.Choice(get_args(OnError))),
        _flag("out", "The archive to fill.", "-o", "--out", required=True, metavar="PATH", type=PATH),
        _flag(
            *("progress", "Show a progress bar; by default on a terminal.", "--progress/--no-progress"),
            default=None,
        ),
        _flag("rebuild", "Build anew and put it in the place of what is there.", is_flag=True),
        _flag("retries", "Tries again at once when the source raises.", type=POSITIVE),
        _flag("timeout", "Seconds for one sample.", type=click.FloatRange(min=0, min_open=True)),
        _flag("yes", "Do not ask; without a terminal nobody is asked.", is_flag=True),
    ]
)


def flags(*names: str) -> Callable[[Command], Command]:
    """Options that commands share, by the names of their arguments, in the order of the help."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _FLAGS[name](command)
        return command

    return decorate


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that were given: not None, nor a flag that was left out."""
    stated = ("progress", "check_space")
    return {k: v for k, v in options.items() if v is not None and (v is not False or k in stated)}
