"""image_folder: a tree of image files, a folder for each class, as a source."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pictures
import pytest
import torch

import edcache
from edcache import CachedDataset, ImageFile, image_folder
from edcache.errors import OptionError, SampleIndexError, StaleCacheError
from edcache.interop.folders import ImageFolder

PATHS = [
    "cat/1.JPG",
    "cat/2.png",
    "cat/old/0.jpg",
    "cat/old/zz.webp",
    "dog/10.jpg",
    "dog/9.jpg",
    "eel/a b.jpeg",
]


LOOSE = "ignore:.* images? lie in the folder itself"
pytestmark = pytest.mark.filterwarnings(LOOSE)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "tree"
    for seed, path in enumerate([*PATHS, "dog/notes.txt", "top.jpg"]):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(pictures.jpeg(seed=seed))
    return root


def test_the_samples_are_those_of_the_tree_in_order(root):
    source = image_folder(root, decode="tensor")
    assert source.classes == ["cat", "dog", "eel"]
    assert source.class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
    assert list(source.in_memory_keys) == ["label", "path", "class_name"]
    assert [s["path"] for s in source] == PATHS
    assert [s["label"] for s in source] == [0, 0, 0, 0, 1, 1, 2]
    assert list(source[2]) == ["image", "label", "path"]
    assert source[2]["image"] == ImageFile((root / PATHS[2]).read_bytes(), "tensor")
    assert source[-1]["path"] == PATHS[-1]
    assert repr(source) == f"ImageFolder({str(root)!r}, 7 images in 3 classes)"
    with pytest.raises(SampleIndexError, match=r"index 7 not in \[-7, 7\)$"):
        source[7]
    assert [s["path"] for s in pickle.loads(pickle.dumps(source))] == PATHS


@pytest.mark.filterwarnings("error")
def test_images_beside_the_classes_are_told(root):
    with pytest.warns(
        RuntimeWarning, match=f"^{root}: 1 images lie in the folder itself, and have no class: 'top.jpg'"
    ):
        image_folder(root)
    (root / "top.jpg").rename(root / "top.txt")
    image_folder(root)


def test_a_name_that_is_no_text_is_written_by_its_bytes(root, path):
    os.rename(root / "cat" / "2.png", os.fsencode(root / "cat") + b"/\xff.png")
    ds = CachedDataset(image_folder(root), path, progress=False)
    assert "cat/\\xff.png" in ds.labels["path"].tolist()
    assert ds.by_key("cat/\\xff.png")["path"] == "cat/\\xff.png"
    assert len(CachedDataset(image_folder(root), path, progress=False)) == len(ds)


def test_its_order_and_labels_are_torchvisions(root):
    """Its `make_dataset`, written down: classes sorted, then each folder of a walk, then its files."""
    expected = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(root) if entry.is_dir())):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            expected += [(os.path.join(folder, f), label) for f in sorted(files) if not f.endswith(".txt")]
    source = image_folder(root)
    assert [(os.path.join(root, s["path"]), s["label"]) for s in source] == expected


def test_a_cache_of_it_reads_without_the_tree(root, path):
    CachedDataset(image_folder(root, decode="tensor"), path, num_workers=2)
    expected = [(root / p).read_bytes() for p in PATHS]
    root.rename(root.with_name("away"))
    ds = CachedDataset.from_cache(path)
    assert ds.labels["path"].tolist() == PATHS
    assert ds.labels["label"].tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert ds.labels.counts("class_name") == {"cat": 4, "dog": 2, "eel": 1}
    assert ds.filter(class_name="dog").labels["path"].tolist() == PATHS[4:6]
    assert ds.batch(range(7))["image"].shape == (7, 3, 17, 23)
    assert [s["image"].data for s in CachedDataset.from_cache(path, decode=None)] == expected
    assert ds.filter(label=1).select("image")[0]["image"].dtype == torch.uint8
    # The paths are relative: the tree may lie elsewhere.
    CachedDataset(image_folder(root.with_name("away"), decode="tensor"), path)


def changed(root):
    (root / PATHS[0]).write_bytes(pictures.jpeg(seed=50))


def touched(root):
    os.utime(root / PATHS[0], ns=(1, 1))


def added(root):
    (root / "dog" / "new.png").write_bytes(pictures.jpeg())


def removed(root):
    (root / PATHS[1]).unlink()


def renamed(root):
    (root / PATHS[0]).rename(root / "cat" / "other.jpg")


def moved(root):
    (root / "eel").rename(root / "frog")


CHANGES = pytest.mark.parametrize(
    "change", [changed, touched, added, removed, renamed, moved], ids=lambda f: f.__name__
)


def nightly(root, path, **options):
    @edcache.cachable(path, progress=False, **options)
    def cached():
        return image_folder(root)

    return cached()


def bare(root, path, **options):
    return CachedDataset(image_folder(root), path, progress=False, **options)


READ = {
    changed: ["cat/1.JPG"],
    touched: ["cat/1.JPG"],
    added: ["dog/new.png"],
    removed: [],
    renamed: ["cat/other.jpg"],
    moved: ["frog/a b.jpeg"],
}


@pytest.mark.parametrize("cached", [nightly, bare])
@CHANGES
def test_of_a_tree_that_changed_the_new_images_alone_are_read(root, path, cached, change, monkeypatch):
    cached(root, path, grow=True, spot_check=False)
    change(root)
    read, get = [], ImageFolder.__getitem__

    def noting(self, index):
        read.append(self.paths[index])
        return get(self, index)

    monkeypatch.setattr(ImageFolder, "__getitem__", noting)
    ds = cached(root, path, grow=True, spot_check=False)
    assert read == READ[change]
    source = image_folder(root)
    assert ds.labels["path"].tolist() == list(ds.keys) == source.paths
    assert ds.labels["label"].tolist() == [source[i]["label"] for i in range(len(source))]
    assert [s["image"].data for s in CachedDataset.from_cache(path, decode=None)] == [
        (root / name).read_bytes() for name in source.paths
    ]


def test_an_image_whose_class_gets_another_number_is_another_sample(root, path):
    bare(root, path)
    (root / "bee").mkdir()
    (root / "bee" / "1.jpg").write_bytes(pictures.jpeg())
    ds = bare(root, path)
    assert ds.labels["class_name"].tolist() == ["bee", *["cat"] * 4, *["dog"] * 2, "eel"]
    assert [sample["label"] for sample in ds] == [0, 1, 1, 1, 1, 2, 2, 3]


def test_a_tree_that_a_source_holds_counts_file_by_file(tmp_path):
    class Held:
        def __init__(self, images):
            self.images = images

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {"count": len(self.images)}

    names = [f"a/{number:05}.jpg" for number in range(5_000)]
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for name in names:
        (tmp_path / "tree" / name).touch()
    CachedDataset(Held(image_folder(tmp_path / "tree")), tmp_path / "h.zip")
    for place in (1, 2_503):
        os.rename(tmp_path / "tree" / names[place], tmp_path / "tree" / names[place].replace(".jpg", "x.jpg"))
        with pytest.raises(StaleCacheError, match="attribute images.names: .* in the archive, "):
            CachedDataset(Held(image_folder(tmp_path / "tree")), tmp_path / "h.zip")
        os.rename(tmp_path / "tree" / names[place].replace(".jpg", "x.jpg"), tmp_path / "tree" / names[place])


def test_another_decoding_is_noticed(root, path):
    CachedDataset(image_folder(root), path)
    with pytest.raises(StaleCacheError, match="attribute decode: 'pil' in the archive, 'tensor' now"):
        CachedDataset(image_folder(root, decode="tensor"), path)
    assert CachedDataset(image_folder(root), path, decode="tensor")[0]["image"].shape == (3, 17, 23)


def test_a_tree_is_described_as_an_argument_of_a_cached_call(root, tmp_path):
    @edcache.cachable(tmp_path / "c.zip")
    def thumbnails(images):
        return [{"y": s["label"]} for s in images]

    thumbnails(image_folder(root))
    thumbnails(image_folder(root))
    touched(root)
    with pytest.raises(StaleCacheError, match="argument images[:.]"):
        thumbnails(image_folder(root))


def test_a_file_that_goes_while_it_is_cached_fails_its_sample(root, path):
    source = image_folder(root)
    removed(root)
    ds = CachedDataset(source, path, on_error="skip")
    assert [e.index for e in ds.errors] == [1]
    assert (
        f"sample 1 (key 'cat/2.png'): sample[\"image\"]: cannot store image file '{root / PATHS[1]}' (No such file"
        in ds.errors[0].message
    )


def test_an_archive_of_a_folder_stores_no_size(root):
    with pytest.raises(OptionError, match="an archive stores none"):
        image_folder(root, decode=edcache.Decoding("tensor", size=8))


def test_what_is_no_tree_of_classes_is_refused(root, tmp_path):
    with pytest.raises(
        OptionError, match=f"^{tmp_path}/no: No such file or directory; give a folder that has one folder"
    ):
        image_folder(tmp_path / "no")
    with pytest.raises(
        OptionError, match=f"^{root}/dog: no folder in it; an image folder has one for each class"
    ):
        image_folder(root / "dog")
    with pytest.raises(OptionError, match="decode='jpg'"):
        image_folder(root, decode="jpg")


def test_each_file_is_asked_for_its_size_and_time_once_in_a_call(root, path, monkeypatch):
    asked, ask = [], os.stat

    def stat(name, *arguments, **keywords):
        asked.append(str(name))
        return ask(name, *arguments, **keywords)

    source = image_folder(root)
    files = sorted(str(root / name) for name in source.paths)
    monkeypatch.setattr(os, "stat", stat)
    for _ in range(2):
        CachedDataset(source, path, progress=False, spot_check=False)
        assert sorted(name for name in asked if name in files) == files
        asked.clear()
    # A call that follows at once looks again.
    Path(files[0]).write_bytes(Path(files[1]).read_bytes())
    assert edcache.changes(CachedDataset.from_cache(path), source).changed.tolist() == [0]
    ds = CachedDataset(source, path, progress=False, spot_check=False)
    assert edcache.changes(ds, source).changed.tolist() == []
