"""image_folder: a tree of image files, a folder for each class, as a source."""

from __future__ import annotations

import os
import pickle

import pictures
import pytest
import torch

import edcache
from edcache import CachedDataset, ImageFile, image_folder
from edcache.errors import OptionError, SampleIndexError, StaleCacheError

PATHS = [
    "cat/1.JPG",
    "cat/2.png",
    "cat/old/0.jpg",
    "cat/old/zz.webp",
    "dog/10.jpg",
    "dog/9.jpg",
    "eel/a b.jpeg",
]


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
    assert source.in_memory_keys == ("label", "path")
    assert [s["path"] for s in source] == PATHS
    assert [s["label"] for s in source] == [0, 0, 0, 0, 1, 1, 2]
    assert list(source[2]) == ["image", "label", "path"]
    assert source[2]["image"] == ImageFile((root / PATHS[2]).read_bytes(), "tensor")
    assert source[-1]["path"] == PATHS[-1]
    assert repr(source) == f"ImageFolder({str(root)!r}, 7 images in 3 classes)"
    with pytest.raises(SampleIndexError, match=r"index 7 not in \[-7, 7\)$"):
        source[7]
    assert [s["path"] for s in pickle.loads(pickle.dumps(source))] == PATHS


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


@pytest.mark.parametrize(
    "change", [changed, touched, added, removed, renamed, moved], ids=lambda f: f.__name__
)
def test_a_tree_that_changed_is_noticed(root, path, change):
    CachedDataset(image_folder(root), path)
    CachedDataset(image_folder(root), path)
    change(root)
    with pytest.raises(
        StaleCacheError, match="argument names, sizes and times: '[0-9a-f]{16}' in the archive, '"
    ) as caught:
        CachedDataset(image_folder(root), path)
    assert ("argument files: 7 in the archive, " in str(caught.value)) == (change in (added, removed))
    assert ("argument classes: " in str(caught.value)) == (change is moved)


def test_another_decoding_is_noticed(root, path):
    CachedDataset(image_folder(root), path)
    with pytest.raises(StaleCacheError, match="argument decode: 'pil' in the archive, 'tensor' now"):
        CachedDataset(image_folder(root, decode="tensor"), path)
    assert CachedDataset(image_folder(root), path, decode="tensor")[0]["image"].shape == (3, 17, 23)


def test_a_tree_is_described_as_an_argument_of_a_cached_call(root, tmp_path):
    @edcache.cachable(tmp_path / "c.zip")
    def thumbnails(images):
        return [{"y": s["label"]} for s in images]

    thumbnails(image_folder(root))
    thumbnails(image_folder(root))
    touched(root)
    with pytest.raises(StaleCacheError, match="argument images: "):
        thumbnails(image_folder(root))


def test_a_file_that_goes_while_it_is_cached_fails_its_sample(root, path):
    source = image_folder(root)
    removed(root)
    ds = CachedDataset(source, path, on_error="skip")
    assert [e.index for e in ds.errors] == [1]
    assert (
        f"sample 1: sample[\"image\"]: cannot store image file '{root / PATHS[1]}' (No such file"
        in ds.errors[0].message
    )


def test_extensions_choose_the_files(root):
    assert [s["path"] for s in image_folder(root / "..", extensions=".png")] == ["tree/cat/2.png"]
    with pytest.raises(OptionError) as caught:
        image_folder(root, extensions=[".png", ".Txt"])
    assert str(caught.value) == (
        f"{root}: the folder 'eel' has no .png, .txt file; remove it, or pass extensions="
    )


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
