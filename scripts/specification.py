"""Print FORMAT.md: the format of archives, and of the records in them, as their modules specify it.

The sources are the docstrings of edcache/format/spec.py and edcache/codec/schema.py. docs/conf.py puts the
same text into the documentation.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

HEAD = """# The format of an edcache archive

`scripts/generate format` makes this file from the docstrings of
[edcache/format/spec.py](edcache/format/spec.py) and [edcache/codec/schema.py](edcache/codec/schema.py).
[File format](docs/reference/format.md) shows an archive in one picture. Another implementation can be held to
[tests/conformance](tests/conformance/README.md).
"""


def markdown(module: str) -> str:
    """The docstring of a module without its first sentence, with headings and literal blocks."""
    text = ast.get_docstring(ast.parse((ROOT / module).read_text(encoding="utf-8"))) or ""
    blocks = []
    for block in text.partition("\n\n")[2].split("\n\n"):
        heading = re.fullmatch(r"(.+)\n-+", "\n".join(block.split("\n")[:2]))
        if heading:
            blocks.append(f"### {heading[1]}")
            block = "\n".join(block.split("\n")[2:])
        if block.startswith("    "):
            blocks.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif block:
            blocks.append(block.replace("**", r"\*\*").replace("{", r"\{"))
    return "\n\n".join(blocks).replace("\n```\n\n```text\n", "\n\n")


def specification() -> str:
    """Both parts."""
    archive, records = markdown("edcache/format/spec.py"), markdown("edcache/codec/schema.py")
    return f"## Archives\n\n{archive}\n\n## Schemas and records\n\n{records}\n"


if __name__ == "__main__":
    print(f"{HEAD}\n{specification()}", end="")
