"""Objects of libraries in a source: unchanged, another process opens the archive; with another setting it is stale."""

import os
import subprocess
import sys

import pytest
from optional import need

HEAD = """
import sys, warnings, logging, tempfile
import numpy as np, torch
import edcache
PATH, SETTING = sys.argv[1], sys.argv[2]
IS_OTHER = SETTING == "other"

class Source(torch.utils.data.Dataset):
    def __init__(self, **held):
        self.__dict__.update(held)
    def __len__(self):
        return 4
"""
TAIL = """
warnings.simplefilter("error")
try:
    ds = edcache.CachedDataset(made, PATH, progress=False)
    print("opened", len(ds))
except edcache.StaleCacheError as error:
    print("stale", error)
"""
VAE = """
from diffusers import AutoencoderKL
torch.manual_seed(IS_OTHER)
vae = AutoencoderKL(
    block_out_channels=(8,), down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
    norm_num_groups=4, sample_size=8,
).eval()
class Latents(Source):
    def __getitem__(self, i):
        with torch.no_grad():
            return {"z": self.vae.encode(torch.full((1, 3, 8, 8), i / 4)).latent_dist.mean[0]}
made = Latents(vae=vae)
"""
COMPILED = """
torch.manual_seed(IS_OTHER)
net = torch.compile(torch.nn.Linear(2, 2).eval(), backend="eager")
class Features(Source):
    def __getitem__(self, i):
        with torch.no_grad():
            return {"y": self.net(torch.ones(2) * i)}
made = Features(net=net)
made[1]
"""
TOKENIZER = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {word: k for k, word in enumerate(["[UNK]", "[PAD]", "a", "b", "c"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
tokenizer.model_max_length = 3 if IS_OTHER else 5
class Tokens(Source):
    def __getitem__(self, i):
        told = self.tokenizer("a b c d e", padding="max_length", truncation=True)
        return {"ids": np.array(told["input_ids"])}
made = Tokens(tokenizer=tokenizer)
if SETTING == "used":
    tokenizer("a b", truncation=True, max_length=2)
"""
TFIDF = """
from sklearn.feature_extraction.text import TfidfVectorizer
texts = ["a b c", "b c d", "c d e", "d e f"]
vectorizer = TfidfVectorizer(token_pattern=r"\\w", sublinear_tf=IS_OTHER).fit([*texts, "a a b b"])
class Vectors(Source):
    def __getitem__(self, i):
        return {"v": self.vectorizer.transform([self.texts[i] + " a a"]).toarray()[0]}
made = Vectors(vectorizer=vectorizer, texts=texts)
"""
TRANSFORM = """
from monai.transforms import Compose, ScaleIntensity
class Scaled(Source):
    def __getitem__(self, i):
        return {"x": np.asarray(self.transform(np.arange(4.0) + i))}
made = Scaled(transform=Compose([ScaleIntensity(minv=0.0, maxv=2.0 if IS_OTHER else 1.0)]))
"""
STREAM = """
import io, os, tarfile, webdataset
tar = os.path.join(os.path.dirname(PATH), "s.tar")
if not os.path.exists(tar):
    with tarfile.open(tar, "w") as file:
        for k in range(4):
            info = tarfile.TarInfo(f"{k}.txt")
            info.size = 1
            file.addfile(info, io.BytesIO(str(k).encode()))
made = webdataset.WebDataset(tar, shardshuffle=False).shuffle(0).decode().map_dict(txt=lambda t: t * (1 + IS_OTHER))
"""
CASES = {
    "diffusers": (VAE, "diffusers", ("same",)),
    "compiled": (COMPILED, "torch", ("same",)),
    "tokenizer": (TOKENIZER, "transformers", ("same", "used")),
    "sklearn": (TFIDF, "sklearn", ("same",)),
    "monai": (TRANSFORM, "monai", ("same",)),
    "webdataset": (STREAM, "webdataset", ("same",)),
}


def run(name, path, setting, seed):
    program = HEAD + CASES[name][0] + TAIL
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-c", program, str(path), setting]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1] if "stale" not in done.stdout else "stale"


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_an_object_of_a_library_is_the_same_in_another_process_and_another_one_is_noticed(name, tmp_path):
    need(CASES[name][1])
    path = tmp_path / "a.zip"
    assert run(name, path, "same", 0) == "opened 4"
    for seed, setting in enumerate(CASES[name][2], 1):
        assert run(name, path, setting, seed) == "opened 4"
    assert run(name, path, "other", 3) == "stale"
