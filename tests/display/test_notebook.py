"""Datasets, labels and reports as a notebook shows them: escaped, and no more than a look."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from optional import Library

import edcache
from edcache import CachedDataset
from edcache.display.markup import element, table
from edcache.errors import UnknownLabelError

nbformat, nbclient = Library("nbformat"), Library("nbclient")

HOSTILE = [
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)"),
    *("</style><script>alert(1)</script>", "javascript:alert(1)", "\x1b[31mred\x1b[0m", "\u202egpj.exe"),
    *("&lt;b&gt;", "a\x00b"),
]


class Tags(HTMLParser):
    """The tags of a page, and every attribute that it has."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {(tag, name, value if name in ("src", "href") else None) for name, value in attrs}

    def handle_data(self, data):
        self.text.append(data)


class Samples:
    def __len__(self):
        return len(HOSTILE)

    def __getitem__(self, i):
        return {"image": torch.full((3, 16, 16), i, dtype=torch.uint8), HOSTILE[i]: HOSTILE[i], "n": i}


@pytest.fixture
def ds(tmp_path):
    cache = CachedDataset(Samples(), tmp_path / "<b>&.zip", in_memory_keys=["n"], progress=False)
    return cache.add_labels(dict.fromkeys(HOSTILE[:4], HOSTILE))


def shown_by(ds):
    view = ds.filter(n=[1, 2])
    return [ds, view, edcache.concat([ds, view]), ds.schema, ds.show(), view.show(1)]


def test_what_a_stranger_wrote_is_text_alone(ds):
    allowed = {
        *("div", "style", "table", "tr", "th", "td", "h4", "span", "i", "b", "img", "figure", "figcaption"),
        *("pre", "p"),
    }
    for value in shown_by(ds):
        html = value._repr_html_()
        tags = Tags(html)
        assert tags.tags <= allowed
        assert {name for _, name, _ in tags.attributes} <= {"class", "style", "title", "src", "alt"}
        sources = {source for _, name, source in tags.attributes if name == "src"}
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        assert not re.search("[\x00\x1b\u202e]", html)
    assert any(HOSTILE[0] in text for text in Tags(ds._repr_html_()).text)


def test_elements_escape_all_but_markup():
    assert element("p", "1 < 2", ["&", element("b", '"')], title='"x"', class_="y", hidden=None) == (
        '<p title="&quot;x&quot;" class="y">1 &lt; 2&amp;<b>&quot;</b></p>'
    )
    assert element("p", "a\x07", "\n") == "<p>a\\x07\n</p>"
    assert table(("a", "b"), [("1", "x"), ("2.5", "3")]).count('class="n"') == 3


def test_a_dataset_says_what_it_holds_and_shows_its_first_samples(ds):
    html = ds._repr_html_()
    assert html.count("<img ") == 8
    assert "9</td>" in html
    assert "tensor</td>" in html
    assert "3 x 16 x 16" in html
    assert [bar[0] for bar in bars(html)] == ["0 to 2", "2 to 4", "4 to 6", "6 to 8", "8 to 8"]
    assert html.count("9 samples of 9 different values") == 4
    assert ds.filter(n=3)._repr_html_().count("<img ") == 1
    assert "1 samples" in Tags(ds.filter(n=3)._repr_html_()).text[1]


def bars(html):
    """Each bar of a notebook: its text, its width, the count."""
    cells = (
        r'<td title="[^"]*">([^<]*)</td><td><i style="width:(\d+)px"></i></td><td class="n dim">([^<]*)</td>'
    )
    return re.findall(cells, html)


def test_labels_are_bars_of_their_values(tmp_path):
    samples = [{"y": k % 3, "split": "ab"[k > 3], "many": k, "boxes": [k]} for k in range(12)]
    names = ["y", "split", "many", "boxes"]
    cache = CachedDataset(samples, tmp_path / "a.zip", in_memory_keys=names, progress=False)
    html = cache._repr_html_()
    assert bars(html)[:5] == [
        ("0", "90", "4"),
        ("1", "90", "4"),
        ("2", "90", "4"),
        ("b", "90", "8"),
        ("a", "45", "4"),
    ]
    assert bars(html)[5] == ("0 to 2", "90", "2")
    assert len(bars(html)) == 11
    assert bars(cache.filter("y == 1")._repr_html_())[:3] == [
        ("1", "90", "4"),
        ("b", "90", "3"),
        ("a", "30", "1"),
    ]


def test_labels_beyond_the_first_are_a_table(tmp_path):
    html = labelled(tmp_path / "few.zip", 12)._repr_html_()
    assert len(bars(html)) == 8
    assert re.findall(r"<td>(l\d+)</td><td>int64</td>", html) == [f"l{k:05}" for k in range(8, 12)]


def test_all_pictures_of_a_sample_are_shown(tmp_path):
    picture = np.zeros((16, 16, 3), np.uint8)
    samples = [{"a": picture, "film": np.stack([picture] * 4), "mask": picture[..., 0], "text": "x" * 40}] * 3
    cache = CachedDataset(samples, tmp_path / "a.zip", progress=False)
    assert cache._repr_html_().count("<img ") == 9
    assert cache.show(2)._repr_html_().count("<img ") == 6
    many = CachedDataset([{str(k): picture for k in range(50)}], tmp_path / "b.zip", progress=False)
    assert many._repr_html_().count("<img ") == 6


def test_the_schema_of_several_archives_is_one(ds, tmp_path):
    other = CachedDataset([{"x": np.zeros((2, 3))}] * 4, tmp_path / "o.zip", progress=False)
    schema = edcache.concat([ds, other, other]).schema
    assert schema[0] == {
        "samples": 8,
        "fields": [{"path": "x", "kind": "array", "dtype": "float64", "shape": [2, 3]}],
    }
    assert repr(other.schema) == "4 samples\nfield  kind   dtype    shape\nx      array  float64  2 x 3"


def test_samples_in_print_are_a_line_each(ds):
    ds.transform = lambda sample: 1 / (sample["n"] != 4) and sample
    lines = repr(ds.show(3)).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("3  n=3")
    assert "ZeroDivisionError: division by zero" in repr(ds.show(9)).splitlines()[4]
    assert repr(ds.filter(n=99).show()) == ""


def test_to_be_shown_runs_nobodys_code_and_computes_no_sample(tmp_path, ds):
    calls = []

    class Source(Samples):
        def __getitem__(self, i):
            calls.append(i)
            return super().__getitem__(i)

    lazy = CachedDataset(Source(), tmp_path / "lazy.zip", lazy=True)
    assert "missing" in lazy._repr_html_()
    assert calls == []
    ds.transform = calls.append
    assert "<img" not in ds._repr_html_()
    pickles = CachedDataset(Samples(), tmp_path / "p.zip", codec="pickle", allow_pickle=True, progress=False)
    assert "<img" not in pickles._repr_html_()
    assert "<img" not in CachedDataset.from_cache(pickles.path)._repr_html_()
    assert calls == []


def test_an_archive_that_was_closed_says_so(ds):
    ds.close()
    assert "closed; open it again to read" in ds._repr_html_()


@pytest.mark.full
def test_a_notebook_has_both_texts(tmp_path):
    code = (
        "import torch, edcache\n"
        "data = [{'image': torch.zeros(3, 16, 16, dtype=torch.uint8), 'y': k % 3} for k in range(20)]\n"
        "ds = edcache.CachedDataset(data, 'a.zip', in_memory_keys=['y'], progress=False)\n"
        "ds"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    [output] = notebook.cells[0].outputs
    assert output.data["text/plain"].startswith("CachedDataset('")
    assert output.data["text/html"].count("<img ") == 8


def test_parts_that_pass_a_users_function_are_not_read_to_be_shown(ds):
    calls = []
    part = ds.with_transform(calls.append)
    assert "<img" not in edcache.concat([part, part])._repr_html_()
    assert "<img" not in edcache.zip_fields(part, ds.select("n"))._repr_html_()
    assert "<img" in edcache.concat([ds, ds])._repr_html_()
    assert calls == []


def test_what_is_printed_steers_no_terminal(tmp_path):
    name = "\x1b[31m\u202ered"
    hostile = CachedDataset([{name: name}], tmp_path / "h.zip", in_memory_keys=[name], progress=False)
    for value in (hostile, hostile.labels, hostile.schema, hostile.show()):
        assert repr(value).replace("\n", "").isprintable()
        assert "red" in repr(value)


def test_a_long_label_is_shown_short(tmp_path):
    long = CachedDataset([{"t": "x" * 100_000}], tmp_path / "l.zip", in_memory_keys=["t"], progress=False)
    assert len(long._repr_html_()) < 10_000


def labelled(path, count):
    """Make an archive of one sample, with a number of label columns."""
    names = [f"l{number:05}" for number in range(count)]
    return CachedDataset([dict.fromkeys(names, 1)], path, in_memory_keys=names, progress=False)


def test_of_many_labels_a_few_are_named(tmp_path):
    few = labelled(tmp_path / "few.zip", 12)
    names = ", ".join(f"l{number:05}" for number in range(12))
    assert repr(few) == f"CachedDataset('{tmp_path / 'few.zip'}', 1 samples, labels: {names})"
    many = labelled(tmp_path / "many.zip", 1_050)
    assert (
        repr(many) == f"CachedDataset('{tmp_path / 'many.zip'}', 1 samples, labels: {names} and 1,038 more)"
    )
    assert repr(many.labels).endswith("l00011: int64 and 1,038 more; 1 rows)")
    found = r"this archive has: l00000, .*, l00011 and 1,038 more; did you mean l01040\?"
    with pytest.raises(UnknownLabelError, match=found):
        many.labels["L01040"]


def test_what_is_closed_has_a_repr(ds):
    view, several = ds.take(2), CachedDataset.from_cache([ds.path])
    ds.close()
    several.close()
    assert repr(ds).endswith("closed)")
    assert [repr(view), repr(several)] == [
        f"View({ds.path!r}, 2 samples: .take(2))",
        f"Concat(1 datasets, {len(several)} samples)",
    ]
