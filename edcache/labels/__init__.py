"""Columns of labels: collected, compared, filtered, exchanged.

classes     The values of a column as small numbers: which are equal, and which come first
columns     The labels of samples as columns
comparable  A column as every comparison sees it: equal values have equal bits
compare     Comparisons of a label column with plain values and with another column, as pyarrow ...
exchange    Columns of samples as Arrow has them, and Parquet files of them
given       Label values that a user has at hand, as columns of the types that an archive holds
query       Which rows fulfil conditions on their labels, found without touching a sample
spec        Which fields of a sample are labels, how their columns are called, and their values in ...
summary     What a label table holds, column by column, in a few lines
values      One label value, as its column keeps it, with its Arrow type
view        The label columns of a dataset as numpy arrays, one value per sample
where       The where-string: comparisons of label columns, written as text
"""

from edcache.labels.classes import Classes, classes, sort_keys
from edcache.labels.columns import LabelCollector, collected, collected_columns
from edcache.labels.exchange import Column, ParquetFile, arrow_column, renamed, schema_of
from edcache.labels.given import (
    check_count,
    chosen_column,
    given_column,
    given_rows,
    given_table,
    joined,
    read_columns,
)
from edcache.labels.query import matching_rows
from edcache.labels.spec import LabelSpec, checked_name
from edcache.labels.view import Labels, checked_indices

__all__ = [
    "Classes",
    "Column",
    "LabelCollector",
    "LabelSpec",
    "Labels",
    "ParquetFile",
    "arrow_column",
    "check_count",
    "checked_indices",
    "checked_name",
    "chosen_column",
    "classes",
    "collected",
    "collected_columns",
    "given_column",
    "given_rows",
    "given_table",
    "joined",
    "matching_rows",
    "read_columns",
    "renamed",
    "schema_of",
    "sort_keys",
]
