"""Samples of a cache or a view as files of other formats.

    export    export: look at the samples, then write them
    tables    a row a sample: Parquet, and a folder that the package datasets reads
    npz       one file of stacked arrays
    files     a file a field: tar shards for webdataset, folders
    plan      what is exported, in which parts, and the work of several processes
    columns   what a column holds
    places    the folder or the file that gets its name when all of it is there
    leaves    a sample as named leaves of a few kinds

A room imports only from those below it.
"""

from edcache.exporting.export import FORMATS, ExportReport, export
from edcache.exporting.leaves import children_of
from edcache.exporting.plan import OnProgress

__all__ = ["FORMATS", "ExportReport", "OnProgress", "children_of", "export"]
