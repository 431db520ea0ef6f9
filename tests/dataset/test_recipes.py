"""Classes of docs/howto/recipes.md do what the trainers that they are for do with them.

The page runs in tests/project/test_docs.py; here are the second run, other processes, and calls that fail.
"""

import itertools
import os
import textwrap
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from likeness import same
from optional import needs
from pages import PAGES, PIECE
from torch.utils.data import DataLoader

import edcache
from edcache.errors import StaleCacheError, UnknownLabelError

PAGE = PAGES["docs/howto/recipes.md"]


def of_recipe(title, *needed):
    """Run the block of a recipe in this folder; returns its names. needed: titles of blocks that run before it."""
    names = {"__name__": "recipes", "edcache": edcache, "np": np, "os": os, "torch": torch}
    for heading in (*needed, title):
        block = PIECE.search(PAGE, PAGE.index(f"## {heading}\n"))
        exec(textwrap.dedent(block["code"]), names)
    return SimpleNamespace(**names)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where a block runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Asked:
    """A function of batches that notes the prompts; what it notes is no part of what identifies it."""

    def __init__(self, function):
        self._function, self._prompts = function, []

    def __call__(self, batch):
        self._prompts += batch["prompt"]
        return self._function(batch)


ENCODERS = "Latents of images, embeddings of prompts"


class TestDiffusion:
    pytestmark = needs("diffusers", "transformers")

    def test_a_prompt_is_encoded_once_and_later_new_ones_alone(self):
        embed = Asked(of_recipe(ENCODERS).embed)

        def cached(prompts):
            samples = [{"prompt": prompt} for prompt in prompts]
            options = {"batch_size": 4, "progress": False, "spot_check": False}
            return edcache.map(embed, samples, "mine.zip", key="prompt", **options)

        first = cached(["a cat", "a dog", "a cat", "a cat"])
        assert sorted(embed._prompts) == ["a cat", "a dog"]
        second = cached(["a fox", "a dog", "a cat", "a fox"])
        assert embed._prompts[2:] == ["a fox"]
        assert same(second[2], first[0])
        assert same(second[0], second[3])

    def test_latents_are_those_of_the_encoder_and_a_new_picture_computes_one(self):
        page = of_recipe(ENCODERS)
        more = page.Pictures([*page.pictures.files[::-1], "new.jpg"])
        with torch.no_grad():
            found = page.vae.encode(page.pictures[7]["image"][None]).latent_dist.mean[0]
        torch.testing.assert_close(page.latents[7]["latent"], found.bfloat16())
        assert str(edcache.changes(page.latents, more)).startswith("1 new: 'new.jpg'\n0 changed\n12 moved")


class Encoder:
    """A VAE with the attributes that the strategy takes."""

    device, dtype = torch.device("cpu"), torch.float64

    def encode(self, pixels):
        assert pixels.dtype == self.dtype
        return SimpleNamespace(latent_dist=SimpleNamespace(sample=lambda: pixels[:, :, ::8, ::8] / 2))


class TestSdScripts:
    RESO = (32, 16)  # width, height

    def strategy(self):
        def load(infos, alpha_mask, random_crop):
            pixels = torch.stack([info.pixels for info in infos])
            masks = [info.pixels[0] if alpha_mask else None for info in infos]
            return pixels, masks, [(40, 20)] * len(infos), [(0, 0, 32, 16)] * len(infos)

        archived = of_recipe("kohya-ss sd-scripts").ArchivedLatents
        return archived("latents.zip", "model", load)

    def train(self, strategy, count, **flags):
        """Cache what is missing, as a trainer does; returns the number of images that were encoded."""
        infos = []
        for k in range(count):
            pixels = torch.arange(3.0 * 16 * 32).reshape(3, 16, 32) + k
            name = strategy.get_latents_npz_path(f"/images/{k}.png", (40, 20))
            infos.append(SimpleNamespace(latents_npz=name, bucket_reso=self.RESO, pixels=pixels))
        flags = {"flip_aug": False, "alpha_mask": False} | flags
        missing = [
            info
            for info in infos
            if not strategy.is_disk_cached_latents_expected(self.RESO, info.latents_npz, **flags)
        ]
        if missing:
            strategy.cache_batch_latents(Encoder(), missing, random_crop=False, **flags)
        self.infos = infos
        return len(missing)

    def test_images_are_encoded_once_also_by_another_process(self):
        strategy = self.strategy()
        assert self.train(strategy, 3) == 3
        assert self.train(strategy, 5) == 2
        assert self.train(self.strategy(), 5) == 0
        info = self.infos[4]
        found = self.strategy().load_latents_from_disk(info.latents_npz, self.RESO)
        expected = (info.pixels[:, ::8, ::8] / 2).numpy(), [40, 20], [0, 0, 32, 16], None, None
        assert same(found, expected)

    def test_a_flip_and_a_mask_are_added_to_latents_that_are_there(self):
        strategy = self.strategy()
        self.train(strategy, 2)
        assert self.train(strategy, 2, flip_aug=True) == 2
        assert self.train(strategy, 2, flip_aug=True, alpha_mask=True) == 2
        assert self.train(strategy, 2, flip_aug=True, alpha_mask=True) == 0
        pixels = self.infos[1].pixels
        _, _, _, flipped, mask = strategy.load_latents_from_disk(self.infos[1].latents_npz, self.RESO)
        assert same(flipped, (pixels.flip(2)[:, ::8, ::8] / 2).numpy())
        assert same(mask, pixels[0].numpy())

    def test_another_size_and_another_model_are_no_hit(self):
        strategy = self.strategy()
        self.train(strategy, 1)
        name = self.infos[0].latents_npz
        assert not strategy.is_disk_cached_latents_expected((16, 32), name, False, False)
        with pytest.raises(UnknownLabelError):
            strategy.load_latents_from_disk(name, (16, 32))
        with pytest.raises(StaleCacheError):
            type(strategy)("latents.zip", "another model", None)


@needs("diffusers", "transformers")
def test_hidden_states_in_a_padded_batch_are_those_of_a_document_alone():
    page = of_recipe("Hidden states of a language model", ENCODERS)
    for k in (0, 10, 49):
        ids = page.states[k]["input_ids"]
        assert bytes(ids.tolist()).decode() == page.documents[k]["text"]
        with torch.no_grad():
            alone = page.teacher(ids[None]).last_hidden_state[0]
        torch.testing.assert_close(page.states[k]["hidden"], alone.bfloat16(), atol=0.02, rtol=0.02)


class TestServer:
    def cache(self):
        return of_recipe("Requests to a server of hidden states").ArchivedStates("shared")

    def test_one_caller_computes_and_the_others_get_its_tensors(self):
        cache, made, start = self.cache(), itertools.count(), threading.Barrier(4)

        def ask(_):
            start.wait()
            return cache.get_or_create("f" * 64, lambda: {"states": torch.full((2,), next(made))}, len)

        with ThreadPoolExecutor(4) as executor:
            results = list(executor.map(ask, range(4)))
        assert next(made) == 1
        assert all(same(result.data, {"states": torch.zeros(2, dtype=torch.long)}) for result in results)
        hit = self.cache().get_or_create("f" * 64, None, len)
        assert (hit.cache_hit, hit.request_id) == (True, "f" * 64)
        assert os.path.exists(hit.path)

    def test_errors_are_those_of_the_trainer_and_nothing_is_stored(self):
        cache = self.cache()

        def has_nan(data):
            raise ValueError("hidden states have NaN")

        with pytest.raises(ValueError, match="hidden states have NaN"):
            cache.get_or_create("0" * 64, lambda: {"states": torch.ones(2)}, has_nan)
        assert not cache.get_or_create("0" * 64, lambda: {"states": torch.ones(2)}, len).cache_hit


def case(k, shape=(1, 4, 6, 8)):
    """A case as a preprocessor makes it: data, seg, properties."""
    locations = {1: np.array([[0, 1, 2, k]]), (1, 2): np.array([[0, 0, 0, k]])}  # of a class, of a region
    properties = {"spacing": [3.0, 0.7, 0.7], "class_locations": locations, "shape": (k, 5)}
    data = np.random.default_rng(k).normal(size=shape).astype(np.float32)
    return data, (data > 0).astype(np.int8), properties


def save_case(k):
    cases = of_recipe("nnU-Net").ArchivedCases
    cases.save_case(*case(k), f"{os.getcwd()}/case_{k:02}")


def resident(name):
    """Return the bytes of files that this process has mapped, and has touched."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


class TestNnUnet:
    def test_cases_of_several_processes_are_read_by_name(self, folder):
        cases = of_recipe("nnU-Net").ArchivedCases
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as executor:
            list(executor.map(save_case, [3, 1, 2, 0, 1]))
        assert cases.get_identifiers(folder) == [f"case_{k:02}" for k in range(4)]
        few = cases(folder, ["case_03", "case_01"])
        assert few.identifiers == ["case_01", "case_03"]
        data, seg, previous, properties = few["case_03"]
        assert previous is None
        assert same((np.array(data), np.array(seg), properties), case(3))
        crop = data[:, 1:3, 2:4]
        torch.from_numpy(crop).add_(1)  # in place, as its transforms do
        assert same(crop, case(3)[0][:, 1:3, 2:4] + 1)
        assert same(few["case_03"][0][:, 1:3, 2:4], case(3)[0][:, 1:3, 2:4])
        with pytest.raises(KeyError):
            few["case_99"]

    @pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="of Linux")
    def test_a_crop_reads_its_own_pages(self, folder):
        cases = of_recipe("nnU-Net").ArchivedCases
        data, seg, properties = case(0, (1, 64, 512, 512))
        cases.save_case(data, seg, properties, f"{folder}/case_00")
        dataset = cases(folder)
        before = resident("RssFile")
        crop = dataset["case_00"][0][:, 20:24, 100:200, 100:200]
        assert np.array_equal(crop, data[:, 20:24, 100:200, 100:200])
        assert resident("RssFile") - before < data.nbytes / 8


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@needs("torch_geometric")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_graphs_are_those_of_a_list(workers):
    page = of_recipe("PyTorch Geometric")
    listed = [page.Data.from_dict(page.graph(k)) for k in range(50)]
    picked = [3, 1, 19, 4, 4]

    def batches(samples):
        return [batch.to_dict() for batch in page.DataLoader(samples, batch_size=2, num_workers=workers)]

    assert page.graphs.num_features == 2
    assert same(batches(page.graphs), batches(listed))
    assert same(batches(page.graphs[picked]), batches([listed[k] for k in picked]))
    view = page.graphs.cache[picked].with_transform(page.Data.from_dict)
    assert same(batches(view), batches([listed[k] for k in picked]))


class TestLeRobot:
    def test_frames_are_decoded_once_and_a_new_episode_alone(self):
        page, opened = of_recipe("Frames of videos"), []
        plain = page.decode

        def decode(episode, frames):
            opened.append((episode, len(frames)))
            return plain(episode, frames)

        page.Frames.__getitems__.__globals__["decode"] = decode
        options = {"batch_size": 16, "progress": False, "spot_check": False}
        edcache.CachedDataset(page.Frames([20, 5]), "top.zip", **options)
        assert opened == [(0, 16), (0, 4), (1, 5)]
        ds = edcache.CachedDataset(page.Frames([20, 5, 7]), "top.zip", **options)
        assert opened[3:] == [(2, 7)]
        batch = next(iter(DataLoader(ds, batch_size=3, sampler=ds.indices_of([(2, 6), (0, 0), (1, 4)]))))
        assert batch["image"][:, 0, 0, 0].tolist() == [26, 0, 14]

    def test_times_are_frames_of_the_episode(self):
        dataset = of_recipe("Frames of videos").dataset
        found = dataset._query_videos({"front": [0.0, 0.1, 0.1, 1.9]}, 0)["front"]
        assert same(found[:, 0, 0, 0], torch.tensor([0, 1, 1, 19]) / 255)
        assert dataset._query_videos({"front": [0.3]}, 1)["front"].shape == (3, 8, 8)
        with pytest.raises(UnknownLabelError):
            dataset._query_videos({"front": [2.0]}, 0)
