"""Classes of docs/howto/recipes.md do what the trainers that they are for do with them.

The page runs twice in tests/project/test_docs.py. Here each recipe runs twice alone, in other processes, and with
calls that fail. A library that is not installed has a stand-in with its documented signatures.
"""

import itertools
import os
import textwrap
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
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


def of_recipe(title, *needed, **given):
    """Run the blocks of a recipe in this folder; returns its names.

    needed: titles of recipes that run before it, up to their first block. given: names that its blocks take.
    """
    names = {"__name__": "recipes", "edcache": edcache, "np": np, "os": os, "torch": torch} | given
    for heading in needed:
        exec(textwrap.dedent(PIECE.search(PAGE, PAGE.index(f"## {heading}\n"))["code"]), names)
    start = PAGE.index(f"## {title}\n")
    end = PAGE.find("\n## ", start)
    for block in PIECE.finditer(PAGE, start, len(PAGE) if end < 0 else end):
        code = textwrap.dedent(block["code"] or block["hidden"])
        exec(code.replace('devices="auto"', 'devices="cpu"'), names)  # of a machine without a GPU
    return SimpleNamespace(**names)


def archives():
    """The archives of this folder, by name."""
    return {path.name: path.read_bytes() for path in Path().rglob("*.zip")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where a block runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


ENCODERS = "Latents of images, embeddings of prompts"
STATES = "Hidden states of a language model"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(
    ("title", "needed", "count"),
    [
        pytest.param(ENCODERS, (), 2, marks=needs("diffusers", "transformers")),
        pytest.param(STATES, (ENCODERS,), 3, marks=needs("diffusers", "transformers")),
        pytest.param(
            "DreamBooth with prior images", (ENCODERS,), 3, marks=needs("diffusers", "transformers")
        ),
        pytest.param("MONAI", (), 1, marks=needs("monai")),
        pytest.param("Hugging Face datasets", (), 2, marks=needs("datasets", "PIL")),
        pytest.param("PyTorch Geometric", (), 1, marks=needs("torch_geometric")),
        ("Frames of videos", (), 1),
    ],
)
def test_a_second_run_opens_what_the_first_computed(title, needed, count):
    """Archives are byte for byte as they were: one that was made again has another uuid."""
    of_recipe(title, *needed)
    first = archives()
    assert len(first) == count
    torch.manual_seed(np.random.default_rng().integers(1 << 30))  # as another process has it
    of_recipe(title, *needed)
    assert archives() == first


class Asked:
    """A function of batches that notes the prompts; what it notes is no part of what identifies it."""

    def __init__(self, function):
        self._function, self._prompts = function, []

    def __call__(self, batch):
        self._prompts += batch["prompt"]
        return self._function(batch)


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


@needs("diffusers", "transformers")
def test_latents_of_dreambooth_are_drawn_by_the_mean_and_variance_of_each_pair():
    page = of_recipe("DreamBooth with prior images", ENCODERS)
    for kind in ("instance", "class"):
        example, stored = page.examples[5], page.pairs[5]
        with torch.no_grad():
            found = page.vae.encode(example[f"{kind}_images"][None]).latent_dist
            embeds = page.text_encoder(example[f"{kind}_prompt_ids"][None]).last_hidden_state[0]
        read = page.DiagonalGaussianDistribution(stored[f"{kind}_latents"][None])
        torch.testing.assert_close(read.mean, found.mean)
        torch.testing.assert_close(read.std, found.std)
        torch.testing.assert_close(stored[f"{kind}_embeds"], embeds)


class DPOTrainer:
    """What TRL 1.16 does with `precompute_ref_log_probs=True`: it tokenizes, and its collator stacks the columns."""

    def __init__(self, train_dataset, args):
        self.train_dataset = train_dataset.map(self._tokenized)
        if args.precompute_ref_log_probs:
            self.train_dataset = self._precompute_ref_logps(self.train_dataset, "train", 8)

    @staticmethod
    def _tokenized(pair):
        return {f"{name}_ids": [*text.encode()] for name, text in pair.items()}

    def _precompute_ref_logps(self, dataset, name, batch_size):
        raise AssertionError("computed again")


@needs("transformers", "datasets")
def test_reference_log_probabilities_are_those_of_a_padded_batch():
    import datasets
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    texts = [{"prompt": "abc"[: 1 + i % 3], "chosen": f"de{i}", "rejected": f"f{i}"} for i in range(12)]
    given = {
        "trl": SimpleNamespace(DPOTrainer=DPOTrainer, DPOConfig=SimpleNamespace),
        "datasets": datasets,
        "arguments": {"train_dataset": datasets.Dataset.from_list(texts)},
        "LlamaConfig": LlamaConfig,
        "small": small,
    }
    title = "Log-probabilities of TRL's reference model"
    page = of_recipe(title, **given)
    first = archives()
    page = of_recipe(title, **given)
    assert archives() == first
    assert isinstance(page.reference, LlamaForCausalLM)
    assert page.trainer.train_dataset[4]["chosen"] == texts[4]["chosen"]
    for name, dataset in itertools.product(
        ("chosen", "rejected"), (page.compared, page.trainer.train_dataset)
    ):
        pairs = [(one["prompt_ids"], one[f"{name}_ids"]) for one in dataset]
        longest = max(len(prompt + ids) for prompt, ids in pairs)
        padded, is_completion = (torch.zeros(len(pairs), longest, dtype=torch.long) for _ in range(2))
        for k, (prompt, ids) in enumerate(pairs):
            padded[k, : len(prompt + ids)] = torch.tensor(prompt + ids)
            is_completion[k, len(prompt) : len(prompt + ids)] = 1
        with torch.no_grad():
            logits = page.reference(padded).logits[:, :-1]  # causal: padding behind changes nothing before
        of_tokens = -torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), padded[:, 1:], reduction="none"
        )
        expected = (of_tokens * is_completion[:, 1:]).sum(1)
        found = torch.tensor([one[f"ref_{name}_logps"] for one in dataset])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Timm:
    """timm.create_model and timm.data, as its documentation has them."""

    def __init__(self, seed=0):
        self.data, self.seed = self, seed

    def create_model(self, model_name, pretrained=False, num_classes=1000):
        assert (pretrained, num_classes) == (True, 0)
        torch.manual_seed(self.seed)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))

    def resolve_model_data_config(self, model):
        return {"input_size": (3, 2, 2), "mean": (0.5,), "std": (2.0,)}

    def create_transform(self, input_size, mean, std, is_training=False):
        assert not is_training
        return Normalize(mean, std)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, image):
        return (image - self.mean[0]) / self.std[0]


def test_features_of_timm_are_those_of_its_backbone():
    images = [(torch.full((3, 2, 2), float(i)), i % 3) for i in range(20)]
    page = of_recipe("Features of timm", timm=Timm(), images=images)
    first = archives()
    page = of_recipe("Features of timm", timm=Timm(), images=images)
    assert archives() == first
    with torch.no_grad():
        expected = page.backbone(torch.stack([(image - 0.5) / 2 for image, _ in images]))
    torch.testing.assert_close(page.features.batch(range(20))["features"], expected)
    assert page.features.batch([4, 2])["label"].tolist() == [1, 2]
    with pytest.raises(StaleCacheError, match="weights|parameters|backbone|model"):
        of_recipe("Features of timm", timm=Timm(seed=1), images=images)
    images[3] = images[4]
    with pytest.raises(StaleCacheError, match="images"):
        of_recipe("Features of timm", timm=Timm(), images=images)


@needs("monai")
def test_volumes_have_what_the_whole_compose_makes():
    from monai.data import Dataset

    page = of_recipe("MONAI")
    live = Dataset(page.items, page.before)
    expected = [np.asarray(one["image"]) for one in live]
    assert all(np.array_equal(np.asarray(page.volumes[k]["image"]), expected[k]) for k in range(20))
    flipped = 0
    for k in range(20):
        found = np.asarray(page.train[k]["image"])
        flipped += not np.array_equal(found, expected[k])
        assert np.array_equal(np.sort(found, axis=None), np.sort(expected[k], axis=None))
    assert page.cut == 1


class KDDataset(torch.utils.data.Dataset):
    """KappaData's base class: a method for each item in place of [index]."""

    @property
    def root_dataset(self):
        return self

    def getdim(self, kind):
        return getattr(self, f"getshape_{kind}")()[0]

    def __getitem__(self, idx):
        raise RuntimeError("use a ModeWrapper")

    __getitem__.__module__ = "kappadata.datasets.kd_dataset"


class ModeWrapper(KDDataset):
    """KappaData's ModeWrapper: the items of `mode`, and with `return_ctx` what their methods put into ctx."""

    def __init__(self, dataset, mode, return_ctx=False):
        self.dataset, self.return_ctx = dataset, return_ctx
        self._methods = [getattr(dataset, f"getitem_{item}") for item in mode.split(" ")]

    @property
    def root_dataset(self):
        return self.dataset.root_dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, idx):
        context = {} if self.return_ctx else None
        items = tuple(method(idx, context) for method in self._methods)
        return (items, context) if self.return_ctx else items


class Flips(KDDataset):
    """A KDDataset that tells in ctx what it did."""

    def __len__(self):
        return 10

    def getitem_x(self, idx, ctx=None):
        if ctx is not None:
            ctx["is_flipped"] = idx % 2 == 1
        return torch.arange(3) + idx

    def getitem_class(self, idx, ctx=None):
        return idx % 4

    def getshape_class(self):
        return (4,)


def test_wrappers_of_kappadata_read_items_and_context_from_the_archive():
    library = SimpleNamespace(KDDataset=KDDataset, wrappers=SimpleNamespace(ModeWrapper=ModeWrapper))
    page = of_recipe("KappaData", kappadata=library, items=Flips())
    first = archives()
    page = of_recipe("KappaData", kappadata=library, items=Flips())
    assert archives() == first
    live = ModeWrapper(Flips(), "x class", return_ctx=True)
    assert len(page.dataset) == len(live)
    assert all(same(page.dataset[i], live[i]) for i in range(len(live)))
    plain = ModeWrapper(page.dataset.dataset, "class x")
    assert same(plain[3], (3, torch.arange(3) + 3))
    assert plain.root_dataset is page.dataset.dataset
    assert plain.dataset.getdim("class") == 4


@needs("datasets", "PIL")
def test_images_of_hugging_face_are_stored_as_their_files():
    page = of_recipe("Hugging Face datasets")
    assert os.path.getsize("cache/hub.zip") < 20 * len(page.photo) < page.photos[0]["image"].nbytes
    kept = edcache.CachedDataset.from_cache("cache/hub.zip", decode=None)
    assert [one["image"].data == page.photo for one in kept] == [True] * 6
    expected = page.photos[2]["image"].float().mean()
    torch.testing.assert_close(page.train[2]["brightness"], expected)
    assert page.train[3]["label"] == 1


class LeRobotDataset:
    """LeRobot's dataset: frames of cameras as float32 [3, height, width] from 0 to 1, beside the row's tensors."""

    repo_id, revision = "lerobot/pusht", "v3.0"
    meta = SimpleNamespace(camera_keys=["observation.images.top", "observation.images.wrist"])

    def __init__(self):
        self.decoded = []

    def __len__(self):
        return 12

    def __getitem__(self, i):
        self.decoded.append(i)
        row = {"episode_index": i // 4, "frame_index": i % 4, "index": i}
        frames = {
            name: torch.full((3, 4, 4), (20 * i + k) / 255) for k, name in enumerate(self.meta.camera_keys)
        }
        tensors = {name: torch.tensor(value) for name, value in row.items()}
        return {**frames, **tensors, "timestamp": torch.tensor(i % 4 / 10), "task": "push"}


def test_samples_of_lerobot_are_decoded_once():
    lerobot = LeRobotDataset()
    page = of_recipe("Samples of LeRobot", lerobot=lerobot)
    live = LeRobotDataset()
    assert sorted(set(lerobot.decoded)) == list(range(12))
    assert len(lerobot.decoded) <= 18  # a fill computes three samples twice, to see whether they repeat
    assert [sorted(one) for one in page.frames] == [sorted(live[0])] * 12
    for k in (0, 7, 11):
        assert same({**page.frames[k], "task": None}, {**live[k], "task": None})
    assert [one["index"].item() for one in page.first] == list(range(8))
    first = archives()
    again = LeRobotDataset()
    of_recipe("Samples of LeRobot", lerobot=again)
    assert (archives() == first, len(again.decoded) <= 1) == (True, True)
    again.revision = "v3.1"
    with pytest.raises(StaleCacheError, match="revision"):
        of_recipe("Samples of LeRobot", lerobot=again)


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
    blocks = dict.fromkeys(("chunks", "blocks", "chunks_seg", "blocks_seg"), (1, 4, 4, 4))
    cases.save_case(*case(k), f"{os.getcwd()}/case_{k:02}", **blocks)  # as nnU-Net's preprocessor does


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
        with pytest.raises(AssertionError):
            cases(folder, None, "stage_0")

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
