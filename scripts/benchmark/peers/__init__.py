"""The systems that are compared: one line each here, one module each beside this file.

A module imports its system's packages at its top, so that importing the module is what a program
pays before it opens a dataset; what is needed to install a system therefore stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmark.peers.base import Peer


@dataclass(frozen=True)
class System:
    """A system by name.

    Args:
        title: how tables call it.
        home: "module:Class" in this package.
        requirements: what pip installs for it.
        bare: what pip installs for it without its dependencies: they do not go with this torch, or
            are not needed to read a local dataset.
        debian: the Debian packages that pip's build of it needs.
        package: whose version the results tell.
        archive_of: the system whose archive it reads.
        workloads: the only ones that it is for; None means all.
    """

    name: str
    title: str
    home: str
    requirements: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    package: str | None = None
    archive_of: str | None = None
    workloads: tuple[str, ...] | None = None

    def load(self) -> type[Peer]:
        """Import its module and what that needs."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(f"benchmark.peers.{module}"), name)

    @property
    def is_ours(self) -> bool:
        """Whether this is edcache or a way to use it."""
        return self.package == "edcache"


_LITDATA = (
    "lightning-utilities",
    "filelock",
    "boto3",
    "requests",
    "urllib3",
    "tifffile",
    "obstore",
    "fsspec",
)
# A lock of filelock 3.19 and newer refuses to be inherited by the forked workers.
_STREAMING = (
    "filelock<3.19",
    "transformers",
    "catalogue",
    "boto3",
    "Brotli",
    "python-snappy",
    "xxhash",
    "zstd",
)

SYSTEMS = (
    System("edcache", "edcache", "ours:Edcache", package="edcache"),
    System(
        "edcache-list",
        "edcache, collate(as_list=...)",
        "ours:Lists",
        package="edcache",
        archive_of="edcache",
        workloads=("tokens",),
    ),
    System(
        "edcache-pad",
        "edcache, collate(pad=...)",
        "ours:Padded",
        package="edcache",
        archive_of="edcache",
        workloads=("tokens",),
    ),
    System(
        "edcache-loader",
        "edcache, own loader",
        "ours:OwnLoader",
        package="edcache",
        archive_of="edcache",
        workloads=("fashion", "images", "volumes"),  # as FFCV's, beside which it stands
    ),
    System(
        "ffcv",
        "FFCV, own Loader",
        "ffcv:Ffcv",
        ("ffcv",),
        debian=("libopencv-dev", "libturbojpeg0-dev", "pkg-config"),
        package="ffcv",
    ),
    System("files", "folder of torch.save files", "files:Files"),
    System("lmdb", "LMDB + pickle", "lmdb:Lmdb", ("lmdb",), package="lmdb"),
    System("memmap", "numpy.memmap, indexed by batch", "memmap:Memmap"),
    System("datasets", "Hugging Face datasets", "datasets:HuggingFace", ("datasets",), package="datasets"),
    System("webdataset", "webdataset", "webdataset:WebDataset", ("webdataset",), package="webdataset"),
    System("litdata", "litdata", "litdata:LitData", _LITDATA, bare=("litdata",), package="litdata"),
    System(
        "mds",
        "mosaicml-streaming (MDS)",
        "mds:Mds",
        _STREAMING,
        bare=("mosaicml-streaming",),
        package="mosaicml-streaming",
    ),
    System(
        "tensordict", "tensordict, memmap folder", "tensordict:Folder", ("tensordict",), package="tensordict"
    ),
    System("dataset-rt", "DatasetRT", "dataset_rt:DatasetRt", ("dataset-rt",), package="dataset-rt"),
    System(
        "turboloader",
        "turboloader, TBL file",
        "turboloader:TurboLoader",
        ("turboloader",),
        package="turboloader",
    ),
    System("tcache", "TensorCache, raw pixels", "tcache:TensorCache", ("tcache",), package="tcache"),
    System("monai", "MONAI PersistentDataset", "monai:Monai", ("monai",), package="monai"),
    System("ram", "tensors in RAM, indexed by batch (bound)", "ram:InRam"),
)

BY_NAME = {system.name: system for system in SYSTEMS}
