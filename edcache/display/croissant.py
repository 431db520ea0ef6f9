"""Croissant: what an archive holds as JSON-LD, as catalogues of data sets read it."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from edcache.display.card import Card, description

_CROISSANT: Final = "http://mlcommons.org/croissant/"
_CONTEXT: Final = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": _CROISSANT,
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{
        name: f"cr:{name}"
        for name in ("column", "extract", "field", "fileObject", "recordSet", "repeated", "source")
    },
}
# The type of a label column, by how Arrow's name of it begins.
_TYPES: Final = {
    **dict.fromkeys(("int", "uint"), "sc:Integer"),
    **dict.fromkeys(("float", "double", "halffloat", "decimal"), "sc:Float"),
    "bool": "sc:Boolean",
    "date": "sc:Date",
    "timestamp": "sc:DateTime",
}


def croissant(card: Card) -> str:
    """Croissant 1.0 of a card that has a digest. Licence, citation and URL are the publisher's to add.

    Its record set are the labels, which are a table in the archive. The samples themselves are no format that
    Croissant knows; the description says what reads them.
    """
    archive = {
        "@type": "cr:FileObject",
        "@id": "archive",
        "name": card.place,
        "contentUrl": quote(card.place, safe="/:?=&%~", errors="surrogateescape"),
        "contentSize": f"{card.document['nbytes']} B",
        "encodingFormat": "application/zip",
        "sha256": (card.document["digest"] or "").removeprefix("sha256:"),
    }
    table = {
        "@type": "cr:FileObject",
        "@id": "labels.arrow",
        "name": "labels.arrow",
        "contentUrl": "labels.arrow",
        "containedIn": {"@id": "archive"},
        "encodingFormat": "application/vnd.apache.arrow.file",
    }
    fields = [_field(name, kind) for name, kind in card.document["labels"].items()]
    records = {"@type": "cr:RecordSet", "@id": "labels", "name": "labels", "field": fields}
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": f"{_CROISSANT}1.0",
        "name": card.name,
        "description": description(card),
        "distribution": [archive, table] if fields else [archive],
        **({"recordSet": [records]} if fields else {}),
    }
    # Nothing in it ends a script element that the JSON is put into.
    return json.dumps(document, indent=1).replace("<", "\\u003c") + "\n"


def _field(name: str, kind: str) -> dict[str, Any]:
    """A label column; of a list the type of its items."""
    is_list = "list<" in kind
    item = kind.rpartition(": ")[2].rstrip(">") if is_list else kind
    return {
        "@type": "cr:Field",
        "@id": f"labels/{quote(name, safe='', errors='surrogateescape')}",
        "name": name,
        "dataType": next((of for begin, of in _TYPES.items() if item.startswith(begin)), "sc:Text"),
        **({"repeated": True} if is_list else {}),
        "source": {"fileObject": {"@id": "labels.arrow"}, "extract": {"column": name}},
    }
