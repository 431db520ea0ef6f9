"""Draw the diagrams of docs/images/ anew, as SVG: .venv/bin/python docs/diagrams.py

Each shows what a small program does that runs here: sizes, orders and what is computed are its results. They are
420 units wide, so that a phone shows their text in full size. Colours follow the reader's choice of light or dark.
"""

from __future__ import annotations

import html
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import edcache
from edcache.samplers import Shuffle

IMAGES = Path(__file__).parent / "images"
WIDTH, SHOWN_WIDTH = 420, 520
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.note { font-size: 13px; fill: #57606a }
.mono { font-family: ui-monospace, monospace; font-size: 13px }
.bold { font-weight: 600 }
.page { fill: #fff }
.box { fill: #f2f4f7; stroke: #8c959f }
.new { fill: #cfe6ff; stroke: #0969da }
.gone { fill: none; stroke: #8c959f; stroke-dasharray: 4 3 }
.line { fill: none; stroke: #57606a }
.tip { fill: #57606a }
.cut { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 6 4 }
.cut-note { fill: #cf222e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .note, .tip { fill: #a5afb9 }
  .page { fill: #161b22 }
  .box { fill: #262d37; stroke: #7d8590 }
  .new { fill: #103a66; stroke: #58a6ff }
  .line { stroke: #a5afb9 }
  .cut { stroke: #ff7b72 }
  .cut-note { fill: #ff7b72 }
}
.rank0 { fill: #0b62a8 }
.rank1 { fill: #f2b134 }
.rank2 { fill: #16794f }
.on0, .on2 { fill: #fff }
.on1 { fill: #1f2328 }
"""


class Drawing:
    """Shapes and texts, one below the other in the file as they are drawn."""

    def __init__(self, height: int, title: str) -> None:
        self._height, self._title = height, title
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """Draw a rectangle."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line, whose baseline is at y."""
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{kind}" {place}>{html.escape(text)}</text>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line with a tip at its end, which points to the right, or down below a point."""
        self.line(x, y, to_x, to_y)
        wings = "l-4,-7 h8" if to_x == x else "l-7,-4 v8"
        self._parts.append(f'<path class="tip" d="M{to_x:g},{to_y:g} {wings} z"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> None:
        """Draw a line."""
        self._parts.append(f'<line class="{kind}" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"/>')

    def bracket(self, x: float, y: float, to_y: float) -> None:
        """Draw a bracket that opens to the left."""
        self._parts.append(f'<path class="line" d="M{x:g} {y:g} h8 V{to_y:g} h-8"/>')

    def svg(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{SHOWN_WIDTH}" '
            f'height="{self._height * SHOWN_WIDTH // WIDTH}" role="img">\n<title>{html.escape(self._title)}</title>'
        )
        page = f'<rect class="page" width="{WIDTH}" height="{self._height}" rx="8"/>'
        return "\n".join([head, f"<style>{STYLE}</style>", page, *self._parts, "</svg>\n"])


def the_file(folder: Path) -> str:
    """Draw the entries of an archive of 600 small pictures, with their sizes."""

    def sample(i: int) -> dict[str, object]:
        return {"image": np.full((3, 32, 32), i % 256, np.uint8), "label": i % 10}

    source = [sample(i) for i in range(600)]
    options = edcache.CacheOptions(in_memory_keys=["label"], chunk_size=200, progress=False, spot_check=False)
    edcache.CachedDataset(source, folder / "file.zip", options)  # without spot checks it has no times
    entries = zipfile.ZipFile(folder / "file.zip").infolist()
    about = {
        "edcache.json": "who made it, and of what",
        "index.rows": "where each record lies",
        "labels/label.arrow": "the column of a label",
        "root.json": "where index and columns lie",
    }
    drawing = Drawing(406, "The entries of an archive")
    y, seal = 16, 0
    for entry in entries:
        name, is_chunk = entry.filename, entry.filename.startswith("chunks/")
        if name == "index.rows":
            seal = y = y + 12
        drawing.box(12, y, 290, 42, "new" if is_chunk else "box")
        drawing.text(20, y + 17, name, "mono bold")
        drawing.text(294, y + 17, f"{entry.file_size / 1000:.1f} kB", "mono", "end")
        drawing.text(
            20, y + 35, "a table with labels | record | record ..." if is_chunk else about[name], "note"
        )
        y += 46
    drawing.box(12, y, 290, 42)
    drawing.text(20, y + 17, "zip directory", "mono bold")
    drawing.text(20, y + 35, "its comment says where root.json is", "note")
    for top, end, lines in (
        (16, seal - 16, ("appended:", "payload", "first,", "header last")),
        (seal, y + 42, ("the seal:", "appended", "when all", "samples are", "there")),
    ):
        drawing.bracket(306, top, end)
        for number, line in enumerate(lines):
            drawing.text(
                322, (top + end) / 2 - 9 * len(lines) + 18 * number + 14, line, "" if number == 0 else "note"
            )
    return drawing.svg()


def the_cut() -> str:
    """Draw a pipeline, and where the cache divides it."""
    drawing = Drawing(292, "A pipeline, cut before its first random step")
    for y, title, title_x, steps in (
        (16, "once, in the first call", 12, ("load", "decode", "resize")),
        (212, "in every epoch, anew", 84, ("augment", "collate", "train")),
    ):
        drawing.text(title_x, y + 12, title, "bold")
        for number, step in enumerate(steps):
            x = 12 + 140 * number
            drawing.box(x, y + 26, 116, 42)
            drawing.text(x + 58, y + 52, step, "", "middle")
            if number:
                drawing.arrow(x - 24, y + 47, x - 2, y + 47)
    drawing.arrow(350, 84, 350, 142)
    drawing.line(12, 112, 408, 112, "cut")
    drawing.text(12, 104, "cut: the steps above give the same each time", "cut-note")
    drawing.box(12, 144, 396, 42, "new")
    drawing.text(210, 170, "archive: samples and labels in one file", "", "middle")
    drawing.arrow(70, 186, 70, 236)
    return drawing.svg()


class Photos:
    """A source with keys and versions that notes what it computes."""

    def __init__(self, versions: dict[str, int]) -> None:
        self._versions = versions
        self.computed: list[str] = []

    def __len__(self) -> int:
        return len(self._versions)

    def __getitem__(self, i: int) -> dict[str, int]:
        self.computed.append(self.sample_key(i))
        return {"x": i}

    def sample_key(self, i: int) -> str:
        """The name of a photo."""
        return list(self._versions)[i]

    def sample_version(self, i: int) -> int:
        """How often a photo was changed."""
        return self._versions[self.sample_key(i)]

    def __edcache_fingerprint__(self) -> dict[str, object]:
        return {}


def the_keys(folder: Path) -> str:
    """Draw a source before and after a change, and what a fill then computes."""
    old = {"ant.jpg": 1, "bee.jpg": 1, "cat.jpg": 1, "dog.jpg": 1}
    new = {"cat.jpg": 1, "ant.jpg": 2, "elk.jpg": 1, "dog.jpg": 1}
    edcache.CachedDataset(Photos(old), folder / "keys.zip", progress=False, spot_check=False)
    now = Photos(new)
    edcache.CachedDataset(now, folder / "keys.zip", progress=False, spot_check=False)
    drawing = Drawing(238, "What is computed again when samples come, change and go")
    drawing.text(12, 28, "the archive has", "bold")
    drawing.text(222, 28, "the source has now", "bold")
    place = {key: 42 + 48 * number for number, key in enumerate(old)}
    for key, y in place.items():
        drawing.box(12, y, 120, 40, "box" if key in new else "gone")
        drawing.text(20, y + (25 if key in new else 17), key, "mono")
        if key not in new:
            drawing.text(20, y + 34, "gone", "note")
    for number, (key, version) in enumerate(new.items()):
        y, is_computed = 42 + 48 * number, key in now.computed
        drawing.box(222, y, 186, 40, "new" if is_computed else "box")
        drawing.text(230, y + 17, key, "mono bold" if is_computed else "mono")
        reason = "new" if key not in old else "changed" if version != old[key] else "moved"
        if not is_computed and list(old).index(key) == number:
            reason = "as it was"
        drawing.text(230, y + 34, f"{reason}: {'computed' if is_computed else 'record is kept'}", "note")
        if key in old and not is_computed:
            drawing.arrow(136, place[key] + 20, 218, y + 20)
    return drawing.svg()


def the_ranks() -> str:
    """Draw three steps of two ranks, and the third one after a resumption on three ranks."""

    def steps_of(ranks: int, state: dict[str, object] | None = None) -> list[list[tuple[int, int]]]:
        samplers = [
            Shuffle(range(18), seed=1, global_batch_size=6, num_replicas=ranks, rank=rank)
            for rank in range(ranks)
        ]
        for sampler in samplers:
            if state:
                sampler.load_state_dict(state)
        shares = [list(sampler) for sampler in samplers]
        return [
            [(int(share[step][at]), rank) for at in range(6 // ranks) for rank, share in enumerate(shares)]
            for step in range(len(shares[0]))
        ]

    first = Shuffle(range(18), seed=1, global_batch_size=6, num_replicas=2, rank=0)
    before, state = steps_of(2), first.state_dict(2)
    after = steps_of(3, state)
    if sorted(number for number, _ in after[0]) != sorted(number for number, _ in before[2]):
        raise AssertionError("a step has other samples on three ranks")

    drawing = Drawing(330, "Steps of two ranks, and of three ranks that resume")

    def row(y: int, title: str, step: Sequence[tuple[int, int]]) -> None:
        drawing.text(12, y + 25, title)
        for at, (number, rank) in enumerate(step):
            drawing.box(84 + 54 * at, y, 50, 38, f"rank{rank}")
            drawing.text(109 + 54 * at, y + 25, str(number), f"bold on{rank}", "middle")

    drawing.text(12, 28, "2 ranks, global_batch_size=6", "bold")
    row(40, "step 1", before[0])
    row(84, "step 2", before[1])
    drawing.line(12, 144, 408, 144, "cut")
    drawing.text(
        12, 138, f"killed after step 2; its state has {state['consumed']} consumed samples", "cut-note"
    )
    drawing.text(12, 172, "3 ranks go on: the same 6 samples in step 3", "bold")
    row(184, "step 3", after[0])
    drawing.text(12, 248, "without the kill, on 2 ranks", "note")
    row(256, "step 3", before[2])
    for rank in range(3):
        drawing.box(84 + 108 * rank, 308, 14, 14, f"rank{rank}")
        drawing.text(104 + 108 * rank, 320, f"rank {rank}", "note")
    return drawing.svg()


def drawn() -> dict[str, str]:
    """Return each diagram by the name of its file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {"file": the_file(folder), "cut": the_cut(), "keys": the_keys(folder), "ranks": the_ranks()}


if __name__ == "__main__":
    for name, svg in drawn().items():
        (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")
