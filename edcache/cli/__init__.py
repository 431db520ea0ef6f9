"""The command line: parse, call one function, print, exit.

    group         `main`, the group of all commands: errors to exit codes
    options       the flags that commands share, made from one table; what options hold; printing
    call          MODULE:FACTORY and its arguments: a call that is loaded and bound, not made yet
    fill          build, images: fill an archive
    exchange      import, export: caches of other systems, files of other formats; edflow's flags
    contents      info, show, ls, labels: an archive, a sample, records and labels as tables
    maintenance   verify, repair, compact, copy, merge, split: archives as wholes
    housekeeping  caches, why, rm, prune: archives as files on a disk

Imports run upwards in this list only, but for `main`. Nothing that imports torch is imported at the top of a
file, so that `edcache --help` answers at once.
"""

from edcache.cli import contents, exchange, fill, housekeeping, maintenance
from edcache.cli.group import main

__all__ = ["contents", "exchange", "fill", "housekeeping", "main", "maintenance"]
