"""Samples of other libraries come back as they were: MONAI, torchvision."""

from __future__ import annotations

import enum
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from edcache import CachedDataset
from edcache.errors import CodecError

# What these libraries deprecate is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def transforms():
    return pytest.importorskip("monai.transforms")


@pytest.fixture(scope="module")
def metatensor():
    return pytest.importorskip("monai.data").MetaTensor


@pytest.fixture(scope="module")
def tv_tensors():
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        from torchvision import tv_tensors
    except RuntimeError:
        # Its operators are compiled for another build of torch. Declared, they let its Python be imported.
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import tv_tensors

        tv_tensors.declared = library  # they live as long as this object
    return tv_tensors


def stored(tmp_path, samples):
    return CachedDataset(samples, tmp_path / "a.zip", progress=False)


def likeness(value):
    """What two values must share: types, values and attributes. It knows nothing of the cache."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            plain = value.as_subclass(torch.Tensor)
            return type(value), plain.dtype, plain.shape, plain.numpy().tobytes(), likeness(vars(value))
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, enum.Enum):
        return type(value), value.name
    if isinstance(value, dict):
        return type(value), [(likeness(key), likeness(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [likeness(item) for item in value]
    return type(value), repr(value)


@pytest.fixture
def pipeline(transforms):
    return transforms.Compose(
        [
            transforms.Spacingd(["image", "label"], pixdim=(1, 1, 1), mode=("bilinear", "nearest")),
            transforms.RandFlipd(["image", "label"], prob=1.0),
            transforms.RandRotate90d("image", prob=1.0),
            transforms.ResizeWithPadOrCropd(["image", "label"], (6, 6, 6)),
        ]
    )


@pytest.fixture
def volumes(metatensor, pipeline):
    """Samples of a pipeline of MONAI's, with a history of what was done to them."""
    torch.manual_seed(0)
    affine = torch.eye(4, dtype=torch.float64) * 2
    meta = {"filename_or_obj": "a.nii", "spatial_shape": np.int16([4, 5, 3]), "nan": np.float32("nan")}
    return [
        pipeline(
            {
                "image": metatensor(torch.randn(1, 4, 5, 3), affine=affine + n, meta=dict(meta)),
                "label": metatensor(torch.randint(0, 3, (1, 4, 5, 3)).float(), affine=affine + n),
                "n": n,
            }
        )
        for n in range(4)
    ]


def test_metatensors_come_back_with_affine_meta_and_history(tmp_path, metatensor, volumes, pipeline):
    ds = stored(tmp_path, volumes)
    for index, sample in enumerate(volumes):
        image = ds[index]["image"]
        assert type(image) is metatensor
        assert torch.equal(image.affine, sample["image"].affine)
        assert len(image.applied_operations) == 4
        assert likeness(ds[index]) == likeness(sample)
    assert likeness(pipeline.inverse(ds[0])) == likeness(pipeline.inverse(volumes[0]))


def test_metatensors_are_collated_as_without_a_cache(tmp_path, metatensor, volumes):
    from monai.data import decollate_batch, list_data_collate

    ds = stored(tmp_path, volumes)
    for collate in (None, default_collate, list_data_collate):
        expected = list(DataLoader(volumes, batch_size=2, collate_fn=collate))
        batches = list(DataLoader(ds, batch_size=2, collate_fn=collate))
        assert likeness(batches) == likeness(expected)
        assert type(batches[0]["image"]) is metatensor
    assert likeness(decollate_batch(batches[1])) == likeness(decollate_batch(expected[1]))


def test_what_a_metatensor_carries_is_refused_where_it_cannot_be_stored(tmp_path, metatensor):
    bad = metatensor(torch.ones(1, 2, 2), meta={"reader": object()})
    match = r'sample\["image"\].encode\(\)\[1\]\["_meta"\]\["reader"\]: cannot store object'
    with pytest.raises(CodecError, match=match):
        stored(tmp_path, [{"image": bad}]).warmup()


@pytest.mark.full
def test_a_reader_imports_a_library_when_it_decodes_such_a_sample(tmp_path):
    image = pytest.importorskip("PIL.Image").new("L", (2, 2))
    stored(tmp_path, [{"y": 1, "image": image}]).warmup()
    script = (
        "import sys, warnings; warnings.simplefilter('ignore')\nimport edcache\n"
        f"ds = edcache.CachedDataset.from_cache({str(tmp_path / 'a.zip')!r})\n"
        "print(len(ds), ds.select('y')[0], 'PIL' in sys.modules)\n"
        "print(type(ds[0]['image']).__name__, 'PIL' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["1 {'y': 1} False", "Image True"]


def test_tv_tensors_come_back(tmp_path, tv_tensors):
    torch.manual_seed(0)
    boxes = torch.rand(2, 4)
    sample = {
        "image": tv_tensors.Image(torch.randint(0, 255, (3, 4, 5), dtype=torch.uint8)),
        "mask": tv_tensors.Mask(torch.ones(4, 5, dtype=torch.bool)),
        "video": tv_tensors.Video(torch.rand(2, 3, 4, 5)),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="CXCYWH", canvas_size=(4, 5), clamping_mode="hard"),
        "points": tv_tensors.KeyPoints(torch.rand(3, 2), canvas_size=(4, 5)),
        "format": tv_tensors.BoundingBoxFormat.XYWH,
    }
    ds = stored(tmp_path, [sample, sample])
    out = ds[1]
    assert likeness(out) == likeness(sample)
    assert type(out["boxes"]) is tv_tensors.BoundingBoxes
    assert out["boxes"].format is tv_tensors.BoundingBoxFormat.CXCYWH
    assert out["boxes"].canvas_size == (4, 5)
    assert out["boxes"].clamping_mode == "hard"
    tensors = {name: value for name, value in sample.items() if name != "format"}
    batches = list(DataLoader(ds.select(*tensors), batch_size=2))
    assert likeness(batches) == likeness([default_collate([tensors, tensors])])
