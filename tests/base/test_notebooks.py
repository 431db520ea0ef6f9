"""In a notebook an error shows the user's own frames and its message, with EDCACHE_DEBUG=1 all frames."""

import re
from pathlib import Path

import pytest

SOURCE = """
import edcache, os, sys, traceback

class Source:
    def __edcache_fingerprint__(self): return "samples"
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: raise ValueError("no pixels")
        return {"x": i}

def index(ds, i):
    return ds[i]

ds = edcache.CachedDataset([{"x": 1}], "a.zip")
"""
CELLS = {
    "index": "index(ds, 100)",
    "kept": "len(traceback.extract_tb(sys.last_value.__traceback__)) > 4",
    "option": "edcache.CachedDataset.from_cache('a.zip', verify='often')",
    "source": "edcache.CachedDataset(Source(), 'b.zip', progress=False)",
    "workers": "edcache.CachedDataset(Source(), 'b.zip', progress=False, num_workers=2)",
    "loader": "from torch.utils.data import DataLoader, Subset\nnext(iter(DataLoader(Subset(ds, [9]))))",
    "debug": "os.environ['EDCACHE_DEBUG'] = '1'\nindex(ds, 100)",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [nbformat.v4.new_code_cell(cell) for cell in (SOURCE, *CELLS.values())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = str(tmp_path_factory.mktemp("notebook"))
    nbclient.NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": folder}}).execute()
    texts = {}
    for name, cell in zip(CELLS, notebook.cells[1:], strict=True):
        output = cell.outputs[-1]
        lines = output.traceback if output.output_type == "error" else [output.data["text/plain"]]
        texts[name] = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(lines))
    return texts


def files(text):
    return re.findall(r"(Cell In ?\[\d+\]|[\w/.-]+\.py)\D{,9}\d", text)


@pytest.mark.full
def test_an_error_shows_where_it_happened_in_the_cells_and_its_message(shown):
    text = shown["index"]
    assert files(text) == ["Cell In[2]", "Cell In[1]"]
    assert "-> 1 index(ds, 100)" in text
    assert "return ds[i]" in text
    assert re.search(r"SampleIndexError: .*a.zip.* index 100 not in \[-1, 1\)$", text)
    assert files(shown["option"]) == ["Cell In[4]"]
    assert files(shown["loader"]) == ["Cell In[7]"]


@pytest.mark.full
@pytest.mark.parametrize("cell", ["source", "workers"])
def test_what_the_source_raised_shows_the_users_frames_of_it(shown, cell):
    text = shown[cell]
    assert 'raise ValueError("no pixels")' in text
    assert "ValueError: no pixels" in text
    assert "SourceError: " in text
    assert not [file for file in files(text) if Path(file).parent.name in ("writer", "dataset")]


@pytest.mark.full
def test_debug_shows_every_frame_and_so_does_the_exception(shown):
    assert len(files(shown["debug"])) >= 3
    assert "indexing.py" in shown["debug"]
    assert shown["kept"] == "True"
