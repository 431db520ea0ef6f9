"""What shows a leaf by the other leaves of its sample: sounds, masks over images, boxes on them."""

import numpy as np
import pytest
import torch

from edcache.display.cells import cell, described_leaves, sample_leaves
from edcache.display.leaves import shown_leaves

WAVE = torch.sin(torch.arange(8_000) / 5)
IMAGE = np.full((30, 40, 3), 90, np.uint8)


def kinds(sample):
    return {".".join(map(str, leaf.path)): leaf.media.kind for leaf in shown_leaves(sample) if leaf.media}


def rates(sample):
    return [leaf.media.rate for leaf in shown_leaves(sample) if leaf.media and leaf.media.kind == "sound"]


@pytest.mark.parametrize(
    ("sample", "rate"),
    [
        ({"wave": WAVE, "sample_rate": 16_000}, 16_000),
        ({"audio": {"array": WAVE.numpy(), "sampling_rate": 22_050}}, 22_050),
        ({"a": {"b": {"wave": WAVE}}, "sr": torch.tensor(8_000)}, 8_000),
        ({"wave": WAVE[None].repeat(2, 1), "Audio_Sample_Rate": np.array([44_100])}, 44_100),
        ({"wave": (WAVE * 9_000).short(), "fs": 8_000.0}, 8_000),
        ((WAVE[None], 16_000, "left"), 16_000),
        ({"rate": 8_000, "near": {"wave": WAVE, "rate": 16_000}}, 16_000),
    ],
)
def test_a_signal_with_a_sample_rate_near_it_is_a_sound(sample, rate):
    assert rates(sample) == [rate]


@pytest.mark.parametrize(
    "sample",
    [
        {"wave": WAVE},
        {"wave": WAVE, "heart_rate": 72},
        {"wave": WAVE, "rate": float("nan")},
        {"wave": WAVE, "rate": "16000"},
        {"wave": WAVE, "rate": True},
        {"vector": WAVE[:300], "rate": 16_000},
        {"tokens": torch.arange(8_000), "rate": 16_000},
        {"is_voice": WAVE > 0, "rate": 16_000},
        {"other": {"rate": 16_000}, "wave": WAVE},
        (WAVE, 12_345),
    ],
)
def test_of_any_other_signal_there_is_a_curve(sample):
    assert rates(sample) == []


def described(sample):
    return {one["path"]: one.get("media") for one in described_leaves(sample_leaves(sample))}


def test_masks_lie_over_the_pictures_of_their_size():
    mask = np.zeros((30, 40), np.uint8)
    mask[3:9, 4:9] = 2
    sample = {
        "image": IMAGE,
        "mask": mask,
        "bools": torch.from_numpy(mask > 0)[None],
        "floats_mask": torch.from_numpy(mask / 2).float()[None],
        "other": np.zeros((30, 41), np.uint8),
        "ct": np.random.default_rng(0).random((9, 30, 40)),
        "organ": np.ones((9, 30, 40), np.int64),
        "film": np.full((5, 3, 30, 40), 200, np.uint8),
    }
    media = described(sample)
    over = {path: [one["path"] for one in of["masks"]] for path, of in media.items()}
    assert over["image"] == ["mask", "bools", "floats_mask"]
    assert over["ct"] == ["organ"]
    assert [over[name] for name in ("mask", "organ", "other", "film")] == [[], [], [], []]
    numbers = [one["number"] for one in media["image"]["masks"]]
    assert numbers == [1, 2, 3]


def test_masks_of_objects_are_the_classes_of_one():
    masks = np.zeros((3, 30, 40), bool)
    for k in range(3):
        masks[k, k : 10 + k, 5 : 9 + k] = True
    for given in (masks, torch.from_numpy(masks.astype(np.uint8))):
        leaf = sample_leaves({"image": IMAGE, "target": {"masks": given}})[1]
        expected = np.max(masks * np.array([1, 2, 3])[:, None, None], axis=0)
        assert (leaf.media.kind, leaf.media.classes, leaf.media.data.tolist()) == (
            "image",
            3,
            expected.tolist(),
        )
        assert [one["path"] for one in described({"image": IMAGE, "masks": given})["image"]["masks"]] == [
            "masks"
        ]
    # Without an image of their size they are what they are alone.
    assert sample_leaves({"masks": np.repeat(masks, 4, axis=0)})[0].media.kind == "volume"
    assert sample_leaves({"image": IMAGE, "mask": np.full((9, 30, 40), np.nan)})[1].media.kind == "volume"


CORNERS = [[1.0, 2.0, 11.0, 22.0], [20.0, 5.0, 40.0, 30.0]]


@pytest.mark.parametrize(
    ("name", "boxes", "form", "corners"),
    [
        ("boxes", torch.tensor(CORNERS), "x y x y", CORNERS),
        ("where", np.array(CORNERS, np.int64), "x y x y", CORNERS),
        (
            "bbox",
            np.array([[1, 2, 10, 20], [30, 15, 10, 15]]),
            "x y width height",
            [[1, 2, 11, 22], [30, 15, 40, 30]],
        ),
        ("bbox", np.array([4, 5, 6, 7]), "x y x y", [[4, 5, 6, 7]]),
        ("boxes", np.array([[0.25, 0.5, 0.5, 1.0]]), "x y x y, of 1", [[10, 15, 20, 30]]),
        ("boxes", np.array([[5, 5, 5, 9]]), "x y x y", [[5, 5, 5, 9]]),
    ],
)
def test_boxes_lie_on_their_image(name, boxes, form, corners):
    [found] = described({"image": IMAGE, name: boxes})["image"]["boxes"]
    assert (found["path"], found["form"], found["corners"], found["names"]) == (name, form, corners, [])


@pytest.mark.parametrize(
    ("name", "boxes"),
    [
        ("boxes", np.array([[1, 2, 500, 20]])),
        ("boxes", np.array([[1, 2, np.nan, 20]])),
        ("boxes", np.zeros((0, 4))),
        ("boxes", np.ones((2, 3))),
        ("matrix", np.array([[30, 15, 10, 15]])),
        ("matrix", np.zeros((4, 4))),
        ("vector", np.array([4, 5, 6, 7])),
    ],
)
def test_numbers_that_do_not_fit_an_image_are_no_boxes(name, boxes):
    assert described({"image": IMAGE, name: boxes})["image"]["boxes"] == []


@pytest.mark.parametrize("labels", [["cat", "dog"], torch.tensor([3, 5]), np.array(["a", "b"])])
def test_boxes_have_the_labels_beside_them(labels):
    sample = {"labels": ["wrong"], "image": IMAGE, "target": {"boxes": np.array(CORNERS), "labels": labels}}
    expected = [str(label) for label in (labels.tolist() if hasattr(labels, "tolist") else labels)]
    assert described(sample)["image"]["boxes"][0]["names"] == expected


def test_of_several_images_the_nearest_has_the_boxes():
    two = {"a": {"image": IMAGE}, "b": {"image": IMAGE, "boxes": np.array(CORNERS)}}
    media = described(two)
    assert (len(media["a.image"]["boxes"]), len(media["b.image"]["boxes"])) == (0, 1)


def test_boxes_on_a_picture_that_is_shown_smaller_are_smaller():
    large = np.full((60, 5_000, 3), 90, np.uint8)
    media = described({"image": large, "boxes": np.array([[30, 6, 3_000, 60]])})["image"]
    assert media["sizes"][:2] == [20, 1_667]
    assert media["boxes"][0]["corners"] == [[10, 2, 1_000, 20]]


def test_tokens_are_numbers_and_text_where_it_is_known():
    words = dict(enumerate("abcdefghij"))

    def detokenizer(numbers):
        return "".join(map(words.get, numbers)) if max(numbers) > 1 else None

    sample = {"ids": torch.arange(10), "attention_mask": torch.ones(10, dtype=torch.int64)}
    one, two = (leaf["media"] for leaf in described_leaves(sample_leaves(sample), detokenizer))
    assert one == {"kind": "tokens", "numbers": "0 1 2 3 4 5 6 7 8 9", "text": "abcdefghij"}
    assert (two["numbers"], two["text"]) == ("1 1 1 1 1 1 1 1 1 1", None)
    assert cell(sample, detokenizer=detokenizer) == {"text": "abcdefghij"}
    assert cell(sample) == {"text": "0 1 2 3 4 5 6 7 8 9"}
    assert cell({"ids": np.arange(100_000)})["text"].endswith("58 59 ...")


def test_a_sample_of_short_values_is_shown_by_all_of_them():
    assert cell({"city": "Rome", "age": 3})["text"] == "city: Rome\nage: 3"
    assert cell("Rome") == {"text": "Rome"}
    assert cell({"city": "Rome", "text": "a text that is longer than a name"})["text"].startswith("a text")


def test_a_sample_of_many_leaves_is_described_soon():
    many = {f"w{k}": {"wave": WAVE[:100]} for k in range(600)} | {"rate": 4_000}
    assert len(rates(many)) == 600
    deep = {"image": IMAGE} | {f"mask{k}": np.ones((30, 40), np.uint8) for k in range(500)}
    assert len(described(deep)["image"]["masks"]) == 500
