"""Values as text for a person, a spreadsheet or a program; pure functions, nothing is printed here.

    listings  many archives, with their sizes and when each was used
    reports   what was found or done: verified, repaired, copied, merged, exported
    archives  what one archive says of itself
    calls     fingerprints: the call that a cache is of
    samples   one sample's tree, and what a schema promises of it
    text      one line, a table, CSV, JSON lines

Each imports only those below it. What comes out of an archive may be anybody's: text meant for a terminal
goes through `printable`.
"""

from edcache.present.archives import info_lines
from edcache.present.calls import comparison_lines, fingerprint_lines
from edcache.present.listings import (
    listing_lines,
    listing_object,
    memory_lines,
    memory_object,
    pruning_row,
    sizes_text,
)
from edcache.present.reports import (
    compact_lines,
    copied_lines,
    export_line,
    merge_line,
    repair_lines,
    repair_object,
    report_lines,
    report_object,
    split_lines,
)
from edcache.present.samples import describe_fields, describe_sample, leaf_row
from edcache.present.text import (
    csv_lines,
    index_ranges,
    json_lines,
    one_line,
    plain,
    plural,
    printable,
    table,
)

__all__ = [
    "compact_lines",
    "comparison_lines",
    "copied_lines",
    "csv_lines",
    "describe_fields",
    "describe_sample",
    "export_line",
    "fingerprint_lines",
    "index_ranges",
    "info_lines",
    "json_lines",
    "leaf_row",
    "listing_lines",
    "listing_object",
    "memory_lines",
    "memory_object",
    "merge_line",
    "one_line",
    "plain",
    "plural",
    "printable",
    "pruning_row",
    "repair_lines",
    "repair_object",
    "report_lines",
    "report_object",
    "sizes_text",
    "split_lines",
    "table",
]
