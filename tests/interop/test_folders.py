"""image_folder: a tree of image files, a folder for each class, as a source."""

from __future__ import annotations

import os
import pickle
import re

import numpy as np
import pictures
import pytest
import torch
from PIL import Image, JpegImagePlugin

import edcache
from edcache import CachedDataset, ImageFile, image_folder
from edcache.errors import ImageError, OptionError, SampleIndexError, StaleCacheError

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


CHANGES = pytest.mark.parametrize(
    "change", [changed, touched, added, removed, renamed, moved], ids=lambda f: f.__name__
)


@CHANGES
def test_a_tree_that_changed_is_noticed(root, path, change):
    CachedDataset(image_folder(root), path)
    CachedDataset(image_folder(root), path)
    change(root)
    with pytest.raises(StaleCacheError) as caught:
        CachedDataset(image_folder(root), path)
    names = r"argument names: \['cat/1.JPG', 'cat/2.png', .*\] in the archive, \["
    assert bool(re.search(names, str(caught.value))) == (change not in (changed, touched))
    times = r"argument sizes and times: ndarray\(int64\[7, 2\], sha256:[0-9a-f]{16}\) in the archive, "
    assert bool(re.search(times, str(caught.value))) == (change is not moved)


def nightly(root, path, **options):
    @edcache.cachable(path, progress=False, **options)
    def cached():
        return image_folder(root)

    return cached()


def bare(root, path, **options):
    return CachedDataset(image_folder(root), path, progress=False, **options)


@pytest.mark.parametrize("cached", [nightly, bare])
@CHANGES
def test_a_tree_whose_first_files_are_others_does_not_grow(root, path, cached, change):
    cached(root, path, grow=True)
    (root / "gnu").mkdir()
    (root / "gnu" / "1.jpg").write_bytes(pictures.jpeg())
    change(root)
    before = path.read_bytes()
    with pytest.raises(StaleCacheError, match="(attribute|argument) (names|sizes and times): ") as caught:
        cached(root, path, grow=True)
    assert ("names: ['cat/1.JPG'," in str(caught.value)) == (change not in (changed, touched))
    assert path.read_bytes() == before


@pytest.mark.parametrize("cached", [nightly, bare])
def test_a_tree_grows_by_what_sorts_behind_its_files(root, path, cached):
    cached(root, path, grow=True)
    for name in ("eel/b.jpg", "frog/1.jpg"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(pictures.jpeg(seed=len(name)))
    ds = cached(root, path, grow=True)
    assert ds.labels["path"].tolist() == [*PATHS, "eel/b.jpg", "frog/1.jpg"]
    assert ds.labels["label"].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert [s["image"].data for s in CachedDataset.from_cache(path, decode=None)] == [
        (root / name).read_bytes() for name in ds.labels["path"].tolist()
    ]


def test_a_changed_tree_is_built_anew_or_taken_where_that_is_asked_for(root, path):
    nightly(root, path)
    added(root)
    with pytest.raises(StaleCacheError, match='delete the file, or pass on_stale="rebuild"'):
        nightly(root, path, grow=True, on_stale="warn")
    assert len(nightly(root, path, grow=True, on_stale="ignore")) == 8
    ds = nightly(root, path, grow=True, on_stale="rebuild")
    assert ds.labels["path"].tolist() == [*PATHS[:6], "dog/new.png", PATHS[6]]


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


def large(mode="RGB", kind="PNG", width=90, height=40, **options):
    return pictures.encoded(kind, pictures.picture(mode, width, height), **options)


def stored(root, file, max_side=45, name="a/x.jpg"):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(file)
    return image_folder(root, max_side=max_side)[0]["image"]


def test_a_larger_jpeg_is_stored_smaller_with_its_own_quality(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for options in ({"quality": 71, "subsampling": 0}, {"quality": 93, "subsampling": 2}):
        file = large("RGB", "JPEG", exif=exif, icc_profile=b"a profile", **options)
        before, after = pictures.as_pillow(file), pictures.as_pillow(stored(tmp_path, file).data)
        assert (after.format, after.size) == ("JPEG", (45, 20))
        assert after.quantization == before.quantization
        assert JpegImagePlugin.get_sampling(after) == JpegImagePlugin.get_sampling(before)
        assert after.getexif()[0x0112] == 6
        assert after.info["icc_profile"] == b"a profile"
        again = pictures.encoded("JPEG", before.resize((45, 20), Image.LANCZOS), **options)
        assert np.array_equal(np.asarray(after), np.asarray(pictures.as_pillow(again)))
    for mode in ("L", "CMYK"):
        assert pictures.as_pillow(stored(tmp_path, large(mode, "JPEG")).data).mode == mode


@pytest.mark.parametrize(
    ("mode", "kind", "found"),
    [
        ("RGB", "PNG", "PNG"),
        ("RGBA", "WEBP", "WEBP"),
        ("L", "BMP", "PNG"),
        ("P", "GIF", "PNG"),
        ("LA", "PNG", "PNG"),
    ],
)
def test_other_larger_files_are_stored_smaller_without_loss(tmp_path, mode, kind, found):
    file = large(mode, kind, **({"lossless": True} if kind == "WEBP" else {}))
    after = stored(tmp_path, file)
    plain = pictures.as_pillow(file, {"P": "RGB"}.get(mode))
    assert after.format == found
    assert np.array_equal(after.decode("numpy"), np.asarray(plain.resize((45, 20), Image.LANCZOS)))


def test_what_is_small_or_has_no_smaller_file_stays_byte_for_byte(tmp_path):
    frames = [pictures.picture("P", 90, 40, seed) for seed in (1, 2)]
    deep = pictures.png(90, 1, 16, 0, [bytes(180)])
    for file, side in (
        *((data, 23) for data, _ in pictures.FILES.values()),
        (pictures.encoded("GIF", frames[0], save_all=True, append_images=frames[1:]), 45),
        (large("CMYK", "TIFF"), 45),
        (deep, 45),
        (b"<html>", 45),
    ):
        assert stored(tmp_path, file, side).data == file


def test_a_larger_file_that_does_not_decode_is_named(tmp_path):
    file = large("RGB", "JPEG")
    with pytest.raises(ImageError) as caught:
        stored(tmp_path, file[:-300])
    assert str(caught.value).startswith(
        f"image file '{tmp_path}/a/x.jpg': JPEG does not decode: image file is"
    )
    assert str(caught.value).endswith(
        "; mend or leave out the file; max_side=None stores the bytes as they are"
    )


def test_smaller_pictures_are_another_source(root, path):
    CachedDataset(image_folder(root, max_side=15), path, num_workers=2)
    assert CachedDataset.from_cache(path)[2]["image"].size == (15, 11)
    CachedDataset(image_folder(root, max_side=15), path)
    with pytest.raises(StaleCacheError, match="argument max_side: 15 in the archive"):
        CachedDataset(image_folder(root), path)
    for side in (0, 2.5, True):
        with pytest.raises(OptionError, match=f"^max_side={side}; give 1 pixel or more, or None$"):
            image_folder(root, max_side=side)
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
