"""Dataset cards: what they say, that nothing in an archive steers whoever reads them, and the command."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from markdown_it import MarkdownIt
from range_server import serving

from edcache import CachedDataset, CacheWriter, digest
from edcache.cli import main
from edcache.display import card_of, croissant, html, markdown

GOLDEN = sorted((Path(__file__).parents[1] / "conformance" / "golden").glob("*.zip"))
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</style><script>alert(1)</script>",
    "![a](http://evil.example/x.png)",
    "[a](javascript:alert(1))",
    "`` code` ``` | cell \\| \\",
    "http://evil.example www.evil.example a@evil.example",
    "# title\n\n- item\n\n---\n\n| a |\n|---|\n```\n~~~",
    "*a* _b_ ~~c~~ $d$ &lt;",
    "\x1b[31m\u202eevil\x00",
]

EVERY = {"b": True, "i": 1, "f": 0.5, "d": np.datetime64("2024-01-01T00:00:01"), "n": [1.5, 2.5], "t": "x"}


def card(path, **options):
    ds = CachedDataset(None, path, allow_partial=True, decode=None, **options)
    return card_of(ds.reader, ds.labels)


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def archive(path):
    class Source:
        def __init__(self, split):
            self.split = split

        def __len__(self):
            return 40

        def __getitem__(self, i):
            return {"image": torch.full((3, 16, 16), i, dtype=torch.uint8), "label": i % 4, "id": f"p{i:02}"}

    CachedDataset(Source("train"), path, in_memory_keys=["label", "id"])
    return path


@pytest.fixture
def hostile(path):
    """An archive whose keys, label names, values, texts and own name are such."""
    path = path.with_name("<img src=x>`|[a](b)*'\\\n.zip")
    with CacheWriter(path, in_memory_keys={text: text for text in HOSTILE}) as writer:
        for i in range(3):
            writer.append({text: HOSTILE[(i + k) % len(HOSTILE)] for k, text in enumerate(HOSTILE)})
    return path


@pytest.fixture
def every(path):
    """An archive with a label of each type that Croissant knows."""
    with CacheWriter(path, in_memory_keys=list(EVERY)) as writer:
        writer.append(EVERY)
    return path


class Seen(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def printed(text):
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def test_a_card_says_what_the_archive_holds_and_how_to_open_it(archive, monkeypatch):
    made = card(archive)
    for text in (Seen(html(made)).text, markdown(made)):
        for part in (
            "40 samples for PyTorch",
            "3 x 16 x 16",
            "uint8",
            "split='train'",
            made.document["uuid"],
        ):
            assert part in text
        assert "40 different values, such as p00, p01, p02" in text
    assert "| 3 | 10 | ████████████████████ |" in markdown(made)
    assert html(made).count("data:image/png;base64,") == 12
    code = markdown(made).partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(archive.parent)
    names = {}
    exec(code, names)
    assert (len(names["ds"]), len(names["part"])) == (40, 10)


def test_in_html_all_that_an_archive_says_is_text(hostile):
    page = html(card(hostile))
    seen = Seen(page)
    ours = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "div",
        "h1",
        "h2",
        "pre",
        "table",
        "tr",
        "th",
        "td",
    }
    assert seen.tags <= ours | {"span", "i", "b", "figure", "figcaption", "img", "p"}
    assert {name for name, _ in seen.attributes} <= {"lang", "charset", "http-equiv", "content", "name"} | {
        *("class", "title", "style", "src", "alt"),
    }
    assert all(value.startswith("data:image/png;base64,") for name, value in seen.attributes if name == "src")
    for text in HOSTILE:
        assert printed(text) in seen.text
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    assert ("content", policy) in seen.attributes
    assert page.index("Content-Security-Policy") < page.index("<title>")


def test_in_markdown_all_that_an_archive_says_is_text(hostile):
    text = markdown(card(hostile))
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inline} <= {"text", "softbreak"}
    assert {token.type for token in tokens} <= {
        *("heading_open", "inline", "heading_close", "paragraph_open", "paragraph_close", "fence"),
        *(
            f"{part}_{end}"
            for part in ("table", "thead", "tbody", "tr", "th", "td")
            for end in ("open", "close")
        ),
    }
    assert sum(token.type == "fence" for token in tokens) == 1
    headings = [tokens[k + 1].content for k, token in enumerate(tokens) if token.type == "heading_open"]
    assert len(headings) == 1 + 3 + len(HOSTILE)
    shown = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    for hostile_text in HOSTILE:
        assert "".join(c if c.isprintable() else repr(c)[1:-1] for c in hostile_text) in shown
    # What sites make a link of by themselves.
    assert "http://" not in text.replace("ds.filter(", "").partition("## Labels")[2]
    assert "@" not in text.partition("## Labels")[2]
    assert "www." not in text.partition("## Labels")[2]


def test_no_pickle_is_opened_and_what_cannot_be_read_is_said(path):
    with CacheWriter(path, codec="pickle") as writer:
        writer.append({"a": 1})
    page = Seen(html(card(path))).text
    assert "a.zip: sample 0: the record holds pickles" in page
    assert str(path.parent) not in page


@pytest.mark.filterwarnings("ignore:records hold the namedtuple")
@pytest.mark.parametrize("path", GOLDEN, ids=[file.stem for file in GOLDEN])
def test_every_golden_archive_has_a_card(path):
    made = card(path)
    assert made.name in Seen(html(made)).text
    assert made.name.replace("+", "") in markdown(made).replace("+", "")


def test_the_command_writes_what_its_file_ends_in(archive, tmp_path):
    done = run("card", archive)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"# {archive.stem}\n")
    digest = "| digest | sha256:"
    assert digest in done.stdout
    assert digest not in run("card", archive, "--no-digest").stdout
    folder = tmp_path / "out"
    folder.mkdir()
    assert run("card", archive, "-o", folder).stdout.splitlines() == [
        *(str(folder / name) for name in ("card.md", "card.html", "croissant.json")),
    ]
    assert run("card", archive, "-o", tmp_path / "x.HTML").exit_code == 0
    assert (tmp_path / "x.HTML").read_text() == (folder / "card.html").read_text()
    assert run("card", archive, "-o", tmp_path / "x", "--to", "md").exit_code == 0
    assert (tmp_path / "x").read_text() == (folder / "card.md").read_text() == done.stdout
    refused = run("card", archive, "-o", tmp_path / "x.pdf")
    assert refused.exit_code == 2
    assert "x.pdf: end it in .md, .html, .htm, .json, .jsonld, or give --to" in refused.stderr


def test_a_card_of_a_url_has_no_credentials_and_one_of_a_file_no_folder(archive):
    with serving(archive.read_bytes()) as served:
        url = served.url.replace("://", "://user:hunter2@") + "?X-Amz-Signature=hunter3"
        for form in ("md", "html", "croissant"):
            done = run("card", url, "--to", form)
            assert done.exit_code == 0, done.stderr
            assert served.url in done.stdout.replace("&#47;", "/")
            assert "hunter" not in done.stdout
            assert str(archive.parent) not in run("card", archive, "--to", form).stdout


def test_an_archive_that_grows_has_no_digest_and_no_croissant(path):
    writer = CacheWriter(path, in_memory_keys=["label"])
    writer.append({"label": 1})
    writer.flush()
    done = run("card", path)
    assert done.exit_code == 0, done.stderr
    assert "| sealed | no, it may still grow |" in done.stdout
    refused = run("card", path, "--to", "croissant")
    assert refused.exit_code == 1
    assert "it is not sealed" in refused.stderr
    writer.close()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["archive", "hostile", "every"])
def test_croissant_is_valid(request, kind, tmp_path):
    import mlcroissant

    path = request.getfixturevalue(kind)
    file = tmp_path / "croissant.json"
    assert run("card", path, "-o", file).exit_code == 0
    assert "<" not in file.read_text()
    dataset = mlcroissant.Dataset(json.loads(file.read_text()))
    assert not dataset.metadata.ctx.issues.errors
    names = [field.name for record in dataset.metadata.record_sets for field in record.fields]
    assert names == list(CachedDataset.from_cache(path).labels)
    assert dataset.metadata.distribution[0].sha256 == digest(path).removeprefix("sha256:")


def test_of_what_croissant_knows_each_column_has_its_type(every):
    fields = json.loads(croissant(card(every)))["recordSet"][0]["field"]
    types = {field["name"]: field["dataType"].partition(":")[2] for field in fields}
    assert types == {"b": "Boolean", "i": "Integer", "f": "Float", "d": "DateTime", "n": "Float", "t": "Text"}
    assert [field["name"] for field in fields if field.get("repeated")] == ["n"]
