"""Every option that a call takes by keyword: what it means, its default and its check, once.

An object of these goes from room to room. The classes named Keywords tell type checkers and editors the same
names and types for `**keywords: Unpack[...]`; `takes` tells them to inspect and help().
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from inspect import Parameter
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, get_args

from edcache.base.errors import OptionError
from edcache.base.wording import suggestion

Verify: TypeAlias = Literal["touch", "open", "always", "never"]
Io: TypeAlias = Literal["auto", "mmap", "pread"]
Preload: TypeAlias = Literal["shm"]
Codec: TypeAlias = Literal["native", "pickle"]
OnError: TypeAlias = Literal["raise", "skip", "skip_final"]
OnFull: TypeAlias = Literal["passthrough", "raise"]
IfFilling: TypeAlias = Literal["join", "wait", "fail"]
OnStale: TypeAlias = Literal["error", "warn", "rebuild", "ignore"]
Sync: TypeAlias = Literal["never", "seal", "chunk"] | float
Workers: TypeAlias = int | Literal["auto"] | None
Folder: TypeAlias = str | os.PathLike[str] | None
Show: TypeAlias = bool | Callable[[int, int | None], object] | None
Transform: TypeAlias = Callable[[Any], Any] | None
InMemoryKeys: TypeAlias = Sequence[Any] | Mapping[str, Any] | None

# Of several archives one each, in their order or by path.
Digests: TypeAlias = str | Sequence[str | None] | Mapping[str, str | None] | None

# "pil", "numpy", "tensor", "stored", None or an edcache.Decoding.
Decode: TypeAlias = Any

F = TypeVar("F", bound=Callable[..., Any])
OptionsT = TypeVar("OptionsT", bound="Options")


@dataclass(frozen=True)
class Options:
    """Base of the options objects."""

    def __post_init__(self) -> None:
        for kind in type(self).__mro__:
            check = vars(kind).get("_check")
            if check is not None:
                check(self)

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of the options."""
        return frozenset(field.name for field in fields(cls))

    @classmethod
    def of(cls: type[OptionsT], options: OptionsT | None, keywords: Mapping[str, Any], door: str) -> OptionsT:
        """These options, the defaults where None, with keywords in place of some.

        Args:
            door: what the user called, for the message.
        Raises:
            OptionError: "from_cache() takes allow_partial, ..., not lazzy; did you mean lazy?".
        """
        unknown = sorted(keywords.keys() - cls.names())
        if unknown:
            names = sorted(cls.names())
            near = suggestion(unknown[0], names)
            raise OptionError(f"{door}() takes {', '.join(names)}, not {', '.join(unknown)}{near}")
        return replace(cls() if options is None else options, **keywords)

    @classmethod
    def part_of(cls: type[OptionsT], options: OptionsT) -> OptionsT:
        """The options of this class alone, out of those of a class that has more."""
        return cls(**{name: getattr(options, name) for name in cls.names()})


class ReadKeywords(TypedDict, total=False):
    """See `ReadOptions`."""

    verify: Verify
    allow_pickle: bool
    io: Io
    decode: Decode
    expected_digest: Digests
    allow_partial: bool
    preload: Preload | None
    local: Folder
    max_bytes: int | float | str | None


@dataclass(frozen=True)
class ReadOptions(Options):
    """How the records of an archive are read.

    Args:
        verify: when a record's crc32 is checked: "touch" at its first read in this process, "always" at every
            read, "never". The index of a sealed archive of up to a thousand entries is compared with the
            chain of entries and with the zip directory when it is opened; "open" does so whatever their
            number, and behind a URL too, and is "touch" otherwise; "never" does not.
        allow_pickle: read records that are pickles, which run whatever code their author chose. Only for
            archives whose author you trust.
        io: "mmap" maps the file, "pread" reads what is asked for into memory of this process, which is what a
            file system of another machine wants. "auto" looks which it is.
        decode: what is made of every `edcache.ImageFile` in a sample: "pil", "numpy", "tensor", None for the
            file's bytes, or an `edcache.Decoding`; "stored" is what was chosen when it was written.
        expected_digest: "sha256:...", what `edcache.digest` said of the sealed archive when it was published.
            The process that opens it hashes the file, before anything in it is parsed, and reads on through
            the descriptor that it hashed. A process that gets this by fork or pickle hashes nothing: it
            checks that the file at the path has the same uuid and the same size. Not noticed is who writes
            into the file after it was hashed, beyond what the crc32s of the records tell.
        allow_partial: open an archive that is not sealed without the warning; see `complete`.
        preload: "shm" reads from a copy of a complete archive in shared memory, made once per host for all
            processes of the user that ask for it. Not with lazy=True.
        local: a folder of this machine for a copy of a sealed archive that is far away. It is usable at once
            and fills with what is read; see `CachedDataset.from_cache`.
        max_bytes: of all copies in the folder of `local` together: bytes, or text such as "20GB". Of a lazy
            archive: it grows no larger; there a part of the free disk such as 0.5 too. What does not fit is
            computed every time.
    """

    verify: Verify = "touch"
    allow_pickle: bool = False
    io: Io = "auto"
    decode: Decode = "stored"
    expected_digest: Digests = None
    allow_partial: bool = False
    preload: Preload | None = None
    local: Folder = None
    max_bytes: int | float | str | None = None

    def _check(self) -> None:
        check_choice("verify", self.verify, get_args(Verify))
        check_choice("io", self.io, get_args(Io))
        if self.preload not in (None, *get_args(Preload)):
            raise OptionError(f"preload={self.preload!r}; choose None or 'shm'")
        if self.local is not None and self.expected_digest is not None:
            raise OptionError(
                "expected_digest= is of a whole archive, local= reads parts of one; copy it with "
                "copy_to_local(..., expected_digest=) and open the copy"
            )


class OpenKeywords(ReadKeywords, total=False):
    """See `OpenOptions`."""

    zero_copy: bool
    transform: Transform
    batch_transform: Transform
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True)
class OpenOptions(ReadOptions):
    """How a dataset over an archive is opened.

    Args:
        zero_copy: arrays lie over the mapped file instead of in memory you own. numpy arrays are read-only
            then; torch knows no such tensor, and writing into one ends the process.
        transform: called with every sample that is read, live: the place of random augmentation.
        batch_transform: called with every collated batch of `batch`, `loader` and a DataLoader with torch's
            `default_collate` or an `edcache.collate`, in the worker where there is one. Both may be set
            later, as attributes.
        storage_options: for the engine that reads a URL, as fsspec takes them: key, secret and endpoint_url
            for s3, token for gs, headers for https. `request_timeout` (30 seconds, and one more for each half
            MiB) and `request_tries` (5) limit every request. What is not given comes from the environment, as
            each engine has it (AWS_*, GOOGLE_APPLICATION_CREDENTIALS, FSSPEC_*).
    """

    zero_copy: bool = False
    transform: Transform = None
    batch_transform: Transform = None
    storage_options: Mapping[str, Any] | None = None

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
    spool: Folder


@dataclass(frozen=True)
class WriteOptions(Options):
    """How the records of an archive are written.

    Args:
        in_memory_keys: the label columns: a list of keys, or a mapping from name to field path
            ("target.boxes", 1) or function. None takes those of the archive or of the source's own attribute
            `in_memory_keys`. One that a complete archive lacks is made of its samples, as by `add_labels`.
        codec: "native" (exact, safe; the default of a new archive), or "pickle" (any object; readers need
            allow_pickle=True).
        compression: "zstd", "zstd:19" or "zstd+dict", per record; a new archive has none by default.
        chunk_size: most samples that one publication holds; a kill loses at most that many.
        sync: when what was published is brought to the disk, so that a power cut cannot take it: "seal" when
            the archive is sealed, "chunk" after every chunk, a number no later than so many seconds after a
            chunk, "never" not at all. A crash of the process never takes what was published.
        spool: the folder of spool files; `$EDCACHE_SPOOL`, else `~/.cache/edcache/spool`. An archive for a
            URL is such a file of this machine until it is complete, then uploaded, and deleted here. What a
            killed process left there is gone on from.
    """

    in_memory_keys: InMemoryKeys = None
    codec: Codec | None = None
    compression: str | None = None
    chunk_size: int | None = None
    sync: Sync = "seal"
    spool: Folder = None

    def _check(self) -> None:
        check_positive("chunk_size", self.chunk_size)
        sync, choices = self.sync, get_args(get_args(Sync)[0])
        is_number = isinstance(sync, int | float) and not isinstance(sync, bool)
        if not (0 < sync < float("inf") if is_number else sync in choices):  # type: ignore[operator]
            words = ", ".join(map(repr, choices))
            raise OptionError(f"sync={sync!r}; choose one of {words}, or a number of seconds above 0")


class WarmupKeywords(TypedDict, total=False):
    """See `FillOptions`; without what warmup() takes by position too."""

    multiprocessing_context: Any
    executor: Any
    shared_filesystem: bool
    if_filling: IfFilling
    check_space: bool
    progress: Show
    on_error: OnError
    retries: int
    timeout: float | None
    grow: bool


class FillKeywords(WarmupKeywords, total=False):
    """See `FillOptions`."""

    num_workers: Workers


@dataclass(frozen=True)
class FillOptions(Options):
    """How the samples that are missing are computed.

    Args:
        num_workers: processes that compute, each of which appends for itself: 0 computes in this one, None
            and "auto" take one for each processor that this process may use. A timeout takes one at least.
        multiprocessing_context: "fork", "spawn", "forkserver", or a context; the platform's by default.
        executor: computes instead: anything with the interface of `concurrent.futures.Executor`, such as
            Dask's `client.get_executor()`, mpi4py's, loky's, Python's own, or `edcache.ray_executor()`.
        shared_filesystem: whether the executor's processes see the file, and append for themselves; False
            lets them return encoded samples, which this process appends.
        if_filling: where another process fills the archive already: "join" shares the work, "wait" waits for
            it, and takes over where it ends early, "fail" raises ArchiveLockedError.
        check_space: end a fill early where the disk cannot hold what is missing.
        progress: True or False; by default a bar shows on a terminal and in a notebook, and elsewhere now and
            then a line. A function is called with (samples present, samples of the dataset) instead.
        on_error: what becomes of a sample that cannot be made: "raise" ends the fill, "skip" records it (see
            `errors`) and a later fill tries again, "skip_final" records it as absent for good.
        retries: how often a sample whose source raised is tried again at once.
        timeout: seconds for one sample; one that hangs, in C code too, is then as one that raises.
        grow: a source that is longer than the archive adds to it; else that is a StaleCacheError.
    """

    num_workers: Workers = 0
    multiprocessing_context: Any = None
    executor: Any = None
    shared_filesystem: bool = True
    if_filling: IfFilling = "join"
    check_space: bool = True
    progress: Show = None
    on_error: OnError = "raise"
    retries: int = 0
    timeout: float | None = None
    grow: bool = False

    def _check(self) -> None:
        check_choice("if_filling", self.if_filling, get_args(IfFilling))
        check_choice("on_error", self.on_error, get_args(OnError))
        check_workers(self.num_workers)
        if type(self.retries) is not int or self.retries < 0:
            raise OptionError(f"retries={self.retries!r}; give 0 or more")
        if self.timeout is not None and not self.timeout > 0:
            raise OptionError(f"timeout={self.timeout!r}; give seconds above 0, or None")
        if self.executor is not None and (self.num_workers != 0 or self.timeout is not None):
            raise OptionError("executor= has processes of its own; leave num_workers and timeout out")

    def __getstate__(self) -> dict[str, Any]:
        # Of this process: an engine's client, a bar's function.
        return self.__dict__ | {"executor": None, "progress": None}


class CacheKeywords(OpenKeywords, WriteKeywords, FillKeywords, total=False):
    """See `CacheOptions`."""

    lazy: bool
    force_cache: bool | None
    keep_existing: bool
    on_full: OnFull


@dataclass(frozen=True)
class CacheOptions(OpenOptions, WriteOptions, FillOptions):
    """All that `CachedDataset` and `@cachable` can be told.

    Args:
        lazy: False fills what is missing now. True computes a sample when it is first asked for.
        force_cache: edflow's word for the same choice: True fills now, False is lazy.
        keep_existing: False builds the archive anew and puts it in the place of an old one.
        on_full: what a full disk does to a lazy cache: "passthrough" computes every time, with one warning;
            "raise" raises StorageError.
    """

    lazy: bool = False
    force_cache: bool | None = None
    keep_existing: bool = True
    on_full: OnFull = "passthrough"

    def _check(self) -> None:
        check_choice("on_full", self.on_full, get_args(OnFull))
        if self.codec == "pickle" and not self.allow_pickle:
            raise OptionError('codec="pickle" needs allow_pickle=True too, or nothing could be read back')

    @property
    def is_lazy(self) -> bool:
        """Whether a lazy cache is asked for; `force_cache`, the older word, decides."""
        return self.lazy if self.force_cache is None else not self.force_cache


def provisional(options: CacheOptions) -> ReadOptions:
    """How to read what is there before it is known whether it is complete."""
    return replace(ReadOptions.part_of(options), allow_partial=True, max_bytes=None, preload=None)


# All but those that may be set of an open dataset too.
FIXED: Final = CacheOptions.names() - {"batch_transform", "transform", "zero_copy"} | {"fingerprint"}


def checked_function(name: str, function: Any) -> Transform:
    """The function that an option or an attribute is set to.

    Raises:
        OptionError: it is none, nor None.
    """
    if function is not None and not callable(function):
        raise OptionError(f"{name}={function!r}; give a function, or None")
    return function  # type: ignore[no-any-return]


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise OptionError for what is none of the choices of an option."""
    if value not in choices:
        raise OptionError(f"{name}={value!r}; choose one of {', '.join(map(repr, choices))}")


def check_positive(name: str, value: int | None) -> None:
    """Raise OptionError for what is neither a whole number above 0 nor None."""
    if value is not None and (type(value) is not int or value < 1):
        raise OptionError(f"{name}={value!r}; give a positive integer")


def check_workers(number: object) -> None:
    """Raise OptionError for what is no number of worker processes."""
    if not (number is None or number == "auto" or (type(number) is int and number >= 0)):
        raise OptionError(f'num_workers={number!r}; give 0 or more, or "auto"')


def takes(kind: type[Options]) -> Callable[[F], F]:
    """Let inspect and help() show the options behind the `**keywords` of a function, or of a class.

    Its docstring has a line "    keywords: ...": what `kind` says of each option follows there.
    """

    def show(door: F) -> F:
        function: Any = vars(door)["__init__"] if isinstance(door, type) else door
        signature = inspect.signature(function)
        *parameters, _ = signature.parameters.values()
        parameters += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in fields(kind)
            if field.name not in signature.parameters and field.default is not MISSING
        ]
        function.__signature__ = signature.replace(parameters=parameters)
        if door.__doc__:
            text, mark, rest = inspect.cleandoc(door.__doc__).partition("\n    keywords:")
            line, _, rest = rest.partition("\n")
            docs = [inspect.cleandoc(base.__doc__ or "") for base in kind.__mro__]
            described = [doc.partition("Args:\n")[2] for doc in docs if "Args:\n" in doc]
            door.__doc__ = "\n".join([text + mark + line, *described, rest])
        return door

    return show
