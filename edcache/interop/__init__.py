"""Caches of other systems, and their names; files of other formats; folders of images.

edflow             edflow's names: CachedDataset, PathCachedDataset, ExamplesFolder and cachable
export             Samples as files of other formats
export_columns     What a column holds, where samples become rows: found out from samples before ...
export_files       One file a field: tar shards for webdataset, and plain folders
export_leaves      A sample as named leaves of a few kinds, which is what every format is given
export_npz         One .npz with a stacked array for each column
export_plan        What is exported, in which parts; and the work of several processes
export_tables      A row a sample: what the formats that have columns share; Parquet; a folder that ...
export_targets     Where an export is written: beside its path, until all of it is there
folders            A tree of image files as a source dataset: a folder for each class, as ...
import_edflow      edflow's caches: a zip of pickles, also one that was killed, or the folder that ...
import_folders     Folders with a file of torch.save for each sample: torch_xla's CachedDataset, ...
import_mds         MDS, the shards of mosaicml-streaming: index.json, and files of samples behind a ...
import_members     The members of a zip as a table, also where a killed writer left no directory; ...
import_packaged    Caches that something else reads: litdata's chunks, what datasets saved, a tree ...
import_source      OldCache: a cache of another system, as a source dataset; and how its files are read
import_tensordict  tensordict's memory-mapped folders and its .tdz files: a file for each leaf, ...
import_webdataset  webdataset's tar shards: files that share a name up to its first dot, one after ...
importer           Which kind of old cache lies at a path, and an old cache to an archive
migrate            Where the archive of an old path lies, and what becomes of an old cache at that path
monai              MONAI's CacheDataset and PersistentDataset, whose caches are archives
torch_xla          torch_xla's CachedDataset, which releases 1.6 to 2.0 had in ...
"""

from edcache.interop.edflow import open_or_fill
from edcache.interop.export import ExportReport, export
from edcache.interop.export_leaves import children_of
from edcache.interop.folders import EXTENSIONS, image_folder
from edcache.interop.importer import import_cache, old_cache

__all__ = [
    "EXTENSIONS",
    "ExportReport",
    "children_of",
    "export",
    "image_folder",
    "import_cache",
    "old_cache",
    "open_or_fill",
]
