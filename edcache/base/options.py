"""Every option that a call takes by keyword: meaning, default and check, once.

Rooms take options as one object. The Keywords classes tell type checkers and editors the same names and types for
`**keywords: Unpack[...]`; `takes` tells them to inspect and help().
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from inspect import Parameter
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

import numpy as np

from edcache.base.errors import OptionError
from edcache.base.frames import cut_traceback
from edcache.base.wording import shown, suggestion

Verify: TypeAlias = Literal["touch", "always", "never"]
Preload: TypeAlias = Literal["shm"]
Codec: TypeAlias = Literal["native", "pickle"]
OnError: TypeAlias = Literal["raise", "skip", "skip_final"]
OnStale: TypeAlias = Literal["error", "warn", "rebuild", "ignore"]
Sync: TypeAlias = Literal["never", "seal", "chunk"] | float
Workers: TypeAlias = int | Literal["auto"] | None
Folder: TypeAlias = str | os.PathLike[str] | Literal[False] | None
Show: TypeAlias = bool | Callable[[int, int | None], object] | None
Transform: TypeAlias = Callable[[Any], Any] | None
InMemoryKeys: TypeAlias = Sequence[Any] | Mapping[str, Any] | None

# "pil", "numpy", "tensor", "stored", None or an edcache.Decoding.
Decode: TypeAlias = Any

F = TypeVar("F", bound=Callable[..., Any])
OptionsT = TypeVar("OptionsT", bound="Options")


@dataclass(frozen=True)
class Options:
    """Base of the options objects."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(option.default, bool) and not isinstance(value, bool):
                raise OptionError(f"{option.name}={shown(value)}; give True or False", option=option.name)
        for kind in type(self).__mro__:
            check = vars(kind).get("_check")
            if check is not None:
                check(self)

    @classmethod
    def names(cls) -> frozenset[str]:
        """Names of the options."""
        return frozenset(field.name for field in fields(cls))

    @classmethod
    def of(cls: type[OptionsT], options: OptionsT | None, keywords: Mapping[str, Any], door: str) -> OptionsT:
        """Return options, by default all defaults, with keywords in place of some; OptionError for an unknown one.

        door: name of the function that the user called, for the message.
        """
        if isinstance(options, cls) and not keywords:
            return options
        if not isinstance(options, cls | None):
            raise OptionError(f"{door}(): options={shown(options)}; give a {cls.__name__}, or keywords")
        unknown = sorted(keywords.keys() - cls.names())
        if unknown:
            names = sorted(cls.names())
            near = suggestion(unknown[0], names) or "."
            raise OptionError(f"{door}() takes no {', '.join(unknown)}{near} It takes {', '.join(names)}")
        return replace(cls() if options is None else options, **keywords)

    @classmethod
    def part_of(cls: type[OptionsT], options: OptionsT) -> OptionsT:
        """Pick the options of this class from an object of a subclass."""
        return cls(**{name: getattr(options, name) for name in cls.names()})


class ReadKeywords(TypedDict, total=False):
    """See `ReadOptions`."""

    verify: Verify
    allow_pickle: bool
    decode: Decode
    expected_digest: str | None
    allow_partial: bool
    preload: Preload | None
    local: Folder
    max_bytes: int | float | str | None


@dataclass(frozen=True)
class ReadOptions(Options):
    """Options of reading the records of an archive.

    Args:
        verify: when the crc32 of a record is checked. "touch" checks it at the first read in this process, "always" at
            every read, "never" not at all.
        allow_pickle: True reads records that are pickles. A pickle runs any code that its author chose. Use it only for
            archives whose author you trust.
        decode: what every `edcache.ImageFile` in a sample becomes: "pil", "numpy", "tensor", or as an
            `edcache.Decoding` says. None returns the ImageFile with the bytes of its file. "stored" uses the choice
            that the archive was written with.
        expected_digest: "sha256:...", as `edcache.digest` returned it for the sealed archive. The process that opens
            the archive hashes the file before it parses anything, and then reads the same open file. A process that
            receives the dataset by fork or pickle does not hash again: it checks that the file has the same uuid and
            size. A write into the file after that is noticed only if the crc32 of a record fails.
        allow_partial: True opens an archive that is not sealed without a warning; see `complete`.
        preload: "shm" reads from a copy of a complete archive in shared memory. The copy is made once per host, for all
            processes of the user that ask for it. It cannot be combined with lazy=True.
        local: a folder on this machine for a copy of a remote, sealed archive. Reading can begin at once, and the copy
            grows with it, ahead of a loader or a sampler that knows its order. An archive behind a URL is copied by
            default, into `$EDCACHE_DIR/copies` (`~/.cache/edcache/copies`). False reads without a copy.
        max_bytes: a limit in bytes, or as text such as "20GB"; a fraction such as 0.5 is that part of the free disk. It
            limits the disk space of all copies in the folder of `local` (by default 0.5); bytes without room there are
            read from far. With lazy=True it limits the archive; samples that do not fit are computed at every read. In
            shared memory the default is then 0.75 of the free part.
    """

    verify: Verify = "touch"
    allow_pickle: bool = False
    decode: Decode = "stored"
    expected_digest: str | None = None
    allow_partial: bool = False
    preload: Preload | None = None
    local: Folder = None
    max_bytes: int | float | str | None = None

    def _check(self) -> None:
        check_choice("verify", self.verify, get_args(Verify))
        check_choice("preload", self.preload, (None, *get_args(Preload)))
        local: object = self.local
        if not (local is None or local is False or isinstance(local, str | os.PathLike)):
            raise OptionError(
                f"local={shown(local)}; give a folder, or False to read without a copy", option="local"
            )
        if self.local and self.expected_digest is not None:
            raise OptionError(
                "expected_digest= needs the complete file, but local= reads parts of it; copy the archive "
                "with copy_to_local(..., expected_digest=) and open the copy"
            )


class OpenKeywords(ReadKeywords, total=False):
    """See `OpenOptions`."""

    transform: Transform
    batch_transform: Transform
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True)
class OpenOptions(ReadOptions):
    """Options of opening a dataset over an archive.

    Args:
        transform: a function of a sample. It is called at every read, so random augmentation belongs here.
            `with_transform(fn, seed=)` adds one whose random numbers belong to the sample.
        batch_transform: a function of a collated batch. It is called for `batch`, `loader`, and a DataLoader
            with torch's `default_collate` or an `edcache.collate`; in the worker process, if there is one.
            Both functions can also be set later, as attributes of the dataset.
        storage_options: options for the library that reads a URL, as fsspec takes them: key, secret and
            endpoint_url for s3, token for gs, headers for https. `request_timeout` (30 seconds, and one more
            for each half MiB) and `request_tries` (5, and 20 while the store says that it is busy, by 429 or
            503) limit every request. The library takes everything else from its environment variables
            (AWS_*, GOOGLE_APPLICATION_CREDENTIALS, FSSPEC_*).
    """

    transform: Transform = None
    batch_transform: Transform = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # it may hold credentials

    def _check(self) -> None:
        checked_function("transform", self.transform)
        checked_function("batch_transform", self.batch_transform)


class WriteKeywords(TypedDict, total=False):
    """See `WriteOptions`."""

    in_memory_keys: InMemoryKeys
    codec: Codec | None
    compression: str | None
    chunk_size: int | None
    sync: Sync


@dataclass(frozen=True)
class WriteOptions(Options):
    """Options of writing the records of an archive.

    Args:
        in_memory_keys: the label columns, as a list of keys, or as a mapping from a name to a field path
            ("target.boxes", 1) or to a function of the sample. None takes the columns of the archive, or the attribute
            `in_memory_keys` of the source. A column that a complete archive does not have is computed from its samples,
            as by `add_labels`.
        codec: "native" stores supported types exactly and safely; it is the default of a new archive. "pickle" stores
            any object. The same call reads the pickles of this archive, which run any code that their author chose;
            other calls need allow_pickle=True.
        compression: "zstd" or "zstd:19", for each record. By default a new archive has none.
        chunk_size: the largest number of samples that are stored together, and the most that a killed process loses.
        sync: when stored samples are synced to the disk, so that a power failure cannot lose them: "seal" when the
            archive is sealed, "chunk" after every chunk, a number at the first chunk that many seconds after the last
            sync, "never" not at all. A crash of the process alone never loses stored samples.
    """

    in_memory_keys: InMemoryKeys = None
    codec: Codec | None = None
    compression: str | None = None
    chunk_size: int | None = None
    sync: Sync = "seal"

    def _check(self) -> None:
        check_count("chunk_size", 1 if self.chunk_size is None else self.chunk_size)
        check_choice("codec", self.codec, (None, *get_args(Codec)))
        choices = get_args(get_args(Sync)[0])
        if not (is_seconds(self.sync) or (isinstance(self.sync, str) and self.sync in choices)):
            words = ", ".join(map(repr, choices))
            raise OptionError(
                f"sync={shown(self.sync)}; choose one of {words}, or a number of seconds above 0",
                option="sync",
            )


class FillKeywords(TypedDict, total=False):
    """See `FillOptions`; without `num_workers`, which warmup() takes by position too."""

    multiprocessing_context: Any
    executor: Any
    batch_size: int | None
    progress: Show
    on_error: OnError
    timeout: float | None
    grow: bool
    spot_check: bool | int | None


@dataclass(frozen=True)
class FillOptions(Options):
    """Options of computing the samples that are missing.

    Args:
        num_workers: the number of processes that compute samples; each writes its own samples to the archive. 0, the
            default of a new dataset, computes in this process. "auto" starts one for each processor that this process
            may use. So does None; to `warmup` it means the number that the dataset was made with. With `timeout` there
            is at least one.
        multiprocessing_context: "fork", "spawn", "forkserver", or a context. The default is the platform's.
        executor: computes the samples instead of worker processes. It is any `concurrent.futures.Executor`: Python's
            pools, loky, mpi4py, Dask (`client.get_executor()`), Ray (docs/howto/clusters.md). Its processes return
            encoded samples, and this process writes them; they need not see its disk.
        batch_size: the number of samples in a call of the source's `__getitems__`, if it has one; a killed process
            loses one such batch. `__getitems__(indices)` returns a list of samples, or a dict or tuple of columns. If
            there is no memory for a batch, its halves are tried; if it raises otherwise, each sample alone. None takes
            up to 64.
        progress: True shows a bar, False nothing. By default a terminal and a notebook show a bar, and pipes and log
            files get a line now and then. A function is called with (samples present, all samples) instead.
        on_error: the treatment of a sample that cannot be computed. "raise" ends the fill. "skip" records the failure
            (see `errors`), and a later fill tries again. "skip_final" records it as absent for good.
        timeout: seconds for one sample, and for each of a batch. A sample that takes longer, in C code too, counts as
            one that raised.
        grow: True appends the new samples of a source with len() that became longer. False raises StaleCacheError for
            it; both do if its first samples changed. A source with keys needs it for `@cachable` alone, which then
            looks at the source at every call (docs/howto/keys.md).
        spot_check: the number of stored samples that are computed again and compared, when the archive is opened with
            its source, or a fill goes on; another one is a StaleCacheError. None compares one, if a sample takes at
            most two seconds and is the same each time. True always compares one, and False none.
    """

    num_workers: Workers = 0
    multiprocessing_context: Any = None
    executor: Any = None
    batch_size: int | None = None
    progress: Show = None
    on_error: OnError = "raise"
    timeout: float | None = None
    grow: bool = False
    spot_check: bool | int | None = None

    def _check(self) -> None:
        if not isinstance(self.spot_check, bool | None):
            check_count("spot_check", self.spot_check)
        check_choice("on_error", self.on_error, get_args(OnError))
        check_workers(self.num_workers)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if not (self.progress is None or isinstance(self.progress, bool) or callable(self.progress)):
            raise OptionError(
                f"progress={shown(self.progress)}; give True, False, None or a function", option="progress"
            )
        context, name = self.multiprocessing_context, "multiprocessing_context"
        if not callable(getattr(context, "Process", None)):
            check_choice(name, context, (None, *multiprocessing.get_all_start_methods()))
        is_executor = callable(getattr(self.executor, "submit", None)) and not isinstance(self.executor, type)
        if self.executor is not None and not is_executor:
            raise OptionError(
                f"executor={shown(self.executor)}; give an object of a concurrent.futures.Executor, or None",
                option="executor",
            )
        if self.timeout is not None and not is_seconds(self.timeout):
            raise OptionError(
                f"timeout={shown(self.timeout)}; give seconds above 0, or None", option="timeout"
            )
        if self.executor is not None and (self.num_workers != 0 or self.timeout is not None):
            raise OptionError("executor= has its own processes; pass neither num_workers= nor timeout=")

    def __getstate__(self) -> dict[str, Any]:
        # Both belong to this process: an engine's client, a bar's function.
        return self.__dict__ | {"executor": None, "progress": None}


class CacheKeywords(OpenKeywords, WriteKeywords, FillKeywords, total=False):
    """See `CacheOptions`."""

    num_workers: Workers
    lazy: bool
    keep_existing: bool


@cut_traceback
@dataclass(frozen=True)
class CacheOptions(OpenOptions, WriteOptions, FillOptions):
    """All options of `CachedDataset` and `@cachable`.

    Args:
        lazy: False computes all missing samples now. True computes a sample at its first read. When the disk is full,
            it computes the samples that are not stored at every read, with one warning. Processes that read a sample
            before one of them has published it compute it each; it is stored once.
        keep_existing: False builds the archive again. The new archive replaces the old one when it is complete.
    """

    lazy: bool = False
    keep_existing: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codec == "pickle":  # this call also reads its own pickles
            object.__setattr__(self, "allow_pickle", True)


def provisional(options: CacheOptions) -> ReadOptions:
    """Return the options for reading an archive that may be incomplete."""
    return replace(ReadOptions.part_of(options), allow_partial=True, max_bytes=None, preload=None)


def checked_function(name: str, function: Any) -> Transform:
    """Return the value of an option or an attribute; OptionError unless it is a function, or None."""
    if function is not None and not callable(function):
        raise OptionError(f"{name}={shown(function)}; give a function, or None", option=name)
    return function  # type: ignore[no-any-return]


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise OptionError unless the value is one of the choices."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise OptionError(
            f"{name}={shown(value)}; choose one of {', '.join(map(repr, choices))}", option=name
        )


def check_count(name: str, value: object, least: int = 1) -> int:
    """Return a whole number from `least` up. Raises: OptionError for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(f"{name}={shown(value)}; give an integer of {least} or more", option=name)
    return int(value)


def is_seconds(value: object) -> bool:
    """True for a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def check_workers(number: object) -> None:
    """Raise OptionError unless this is a number of worker processes, "auto" or None."""
    is_auto = isinstance(number, str) and number == "auto"
    if not (number is None or is_auto or (type(number) is int and number >= 0)):
        raise OptionError(f'num_workers={shown(number)}; give 0 or more, or "auto"', option="num_workers")


def takes(kind: type[Options], without: Collection[str] = ()) -> Callable[[F], F]:
    """Let inspect and help() show the options behind the `**keywords` of a function, or of a class.

    The text of each option is inserted behind the line "    keywords: ..." of its docstring.
    without: names of options that it refuses.
    """

    def show(door: F) -> F:
        function: Any = vars(door)["__init__"] if isinstance(door, type) else door
        signature = inspect.signature(function)
        *parameters, _ = signature.parameters.values()
        parameters += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in fields(kind)
            if field.name not in {*signature.parameters, *without} and field.default is not MISSING
        ]
        function.__signature__ = signature.replace(parameters=parameters)
        if door.__doc__:
            text, mark, rest = inspect.cleandoc(door.__doc__).partition("\n    keywords:")
            # The entry of the keywords may take several lines, which are indented further.
            line, *lines = re.split(r"\n(?!        )", rest, maxsplit=1)
            rest = lines[0] if lines else ""
            docs = [inspect.cleandoc(base.__doc__ or "") for base in kind.__mro__]
            described = [doc.partition("Args:\n")[2] for doc in docs if "Args:\n" in doc]
            # So may the text of an option, which begins with its name.
            entries = [one for doc in described for one in re.split(r"\n(?=    \w)", doc.rstrip())]
            shown = [one for one in entries if one.lstrip().partition(":")[0] not in without]
            door.__doc__ = "\n".join([text + mark + line, *shown, rest])
        return door

    return show
