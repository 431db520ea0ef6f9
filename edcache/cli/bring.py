"""copy: an archive that is far away, or a folder of them, to a disk of this machine."""

from __future__ import annotations

import click

from edcache.cli.group import PATH, main, print_lines, progress_option
from edcache.present import copied_lines


@main.command()
@click.argument("src", type=PATH)
@click.argument("dst", type=PATH)
@click.option("--digest", metavar="DIGEST", help="The SHA-256 that the archive must have.")
@click.option("--threads", type=click.IntRange(min=1), default=8, show_default=True, help="Reads at a time.")
@click.option("--max-size", metavar="SIZE", help="All copies in DST together: 500MB, 1.5GB, 1TiB.")
@progress_option
def copy(
    src: str, dst: str, digest: str | None, threads: int, max_size: str | None, progress: bool | None
) -> None:
    """Copy a sealed archive, or all those in a folder, to a disk of this machine.

    DST is a folder, or with the same ending as SRC the path of the copy. The copy has its name when every
    crc32 of it was compared. One that was killed is continued, one that is there already and whose SRC did
    not change costs a look; of one whose SRC changed the rest is copied. Others that copy the same wait for
    it. With --max-size, copies that nobody has open go to make room, the least recently used first.

    \b
    Example:
      edcache copy /nfs/train.zip /ssd/cache --digest sha256:9f2c...
    """
    from edcache.local import CopyOptions, copy_local
    from edcache.progress import ByteProgress

    with ByteProgress(f"copying {src}", progress) as tell:
        copied = copy_local(src, dst, CopyOptions(threads, digest, max_size), tell)
    print_lines(copied_lines(copied))
