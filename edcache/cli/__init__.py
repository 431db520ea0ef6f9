"""The command line: parse, call one function, print, exit.

    group.py  `main`, the group of all commands: errors to exit codes; options and printing that they share
    call.py   MODULE:FACTORY and its arguments: a call that is loaded and bound, not made yet
    build.py  build, images: fill an archive
    taking.py  import: fill one with another system's cache; the flags of edflow's command
    look.py   info, show: an archive, one sample
    rows.py   ls, labels: its records and labels as tables
    check.py  verify, repair, compact
    bring.py  copy: an archive that is far away, to a disk of this machine
    join.py   merge, split: the samples of several archives in one, of one in several
    out.py    export: samples as files of other formats
    keep.py   caches, why, rm, prune: archives as files on a disk

Imports run upwards in this list only. Nothing that imports torch is imported at the top of a room, so that
`edcache --help` answers at once.
"""

from edcache.cli import bring, build, check, join, keep, look, out, rows, taking
from edcache.cli.group import main

__all__ = ["bring", "build", "check", "join", "keep", "look", "main", "out", "rows", "taking"]
