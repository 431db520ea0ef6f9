"""Samples of a cache or a view as files of other formats.

    export    export: look at the samples, then write them
    huggingface, npz   a folder that the package datasets reads; one file of stacked arrays
    rows      a row a sample, and Parquet
    columns   what a column holds
    single    a file a field: tar shards for webdataset, folders
    plan      which samples to look at, and the work of several processes
    places    the folder or the file that gets its name when all of it is there
    leaves    a sample as named leaves of a few kinds

A room imports only from those below it.
"""

from edcache.exporting.export import FORMATS, ExportReport, export
from edcache.exporting.leaves import children_of
from edcache.exporting.plan import OnProgress

__all__ = ["FORMATS", "ExportReport", "OnProgress", "children_of", "export"]
