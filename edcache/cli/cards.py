"""card: what an archive holds as a page for people, or as metadata for catalogues."""

from __future__ import annotations

import os
from typing import Final

import click

from edcache import dataset, display, tools
from edcache.cli.flags import PATH, flags, output
from edcache.cli.output import bar, printable

_FILES: Final = {"md": "card.md", "html": "card.html", "croissant": "croissant.json"}
_FORMATS: Final = {".md": "md", ".html": "html", ".htm": "html", ".json": "croissant", ".jsonld": "croissant"}


@click.command()
@click.argument("path", type=PATH)
@output("Where to write: card.html, for one.", required=False, metavar="FILE|FOLDER")
@click.option("--to", "form", type=click.Choice([*_FILES]), help="By default as FILE ends, or md.")
@click.option("--no-digest", is_flag=True, help="Leave out the SHA-256, which takes reading all of PATH.")
@flags("progress")
def card(path: str, output: str | None, form: str | None, no_digest: bool, progress: bool | None) -> None:
    """Describe an archive for whoever gets it: a dataset card.

    A card has some samples, the labels as bars, the fields, the sizes, the digest, what made the archive, and
    the lines of Python that open it. HTML is one file with its pictures in it. Markdown has no pictures.
    Croissant is the metadata that catalogues of datasets read. Without -o the card is printed. A FOLDER that
    exists gets card.md, card.html and croissant.json. Pickles are not opened.

    \b
    Example:
      edcache card train.zip -o card.html
    """
    is_folder = output is not None and os.path.isdir(output)
    suffix = "" if output is None or is_folder else os.path.splitext(output)[1].lower()
    if suffix not in _FORMATS and not (output is None or is_folder or form):
        raise click.UsageError(f"-o {output}: end it in {', '.join(_FORMATS)}, or give --to")
    forms = [form] if form else [*_FILES] if is_folder else [_FORMATS.get(suffix, "md")]
    cache = dataset.CachedDataset(None, path, allow_partial=True, decode=None)
    digest = None
    # Of an archive that still grows there is none, which ends what cannot do without.
    if "croissant" in forms or (cache.reader.sealed and not no_digest):
        with bar("hashing", path, progress) as on_progress:
            digest = tools.digest(path, on_progress)
    shown = display.card_of(cache.reader, cache.labels, digest)
    make = {"md": display.markdown, "html": display.html, "croissant": display.croissant}
    for each in forms:
        text = make[each](shown)
        if output is None:
            click.echo(text, nl=False)
            continue
        file = os.path.join(output, _FILES[each]) if is_folder else output
        if os.path.exists(file) and os.path.exists(path) and os.path.samefile(file, path):
            raise click.UsageError(f"-o {file}: this is the archive itself; give another file")
        with open(file, "w", encoding="utf-8", newline="\n") as written:
            written.write(text)
        click.echo(printable(file))
