"""Tokens as text, by a tokenizer of transformers that lies in files."""

import json
import socket
import sys
from urllib.request import urlopen

import pytest
import torch
from click.testing import CliRunner
from optional import Library, needs
from written import write

from edcache import CachedDataset
from edcache.cli import main
from edcache.display import detokenizer
from edcache.errors import OptionError

WORDS = ["[UNK]", "the", "cat", "sat", "on", "a", "mat"]
tokenizers, transformers = Library("tokenizers"), Library("transformers")


def refuse(*_, **__):
    raise AssertionError("the network was asked")


@pytest.fixture
def folder(tmp_path):
    model = tokenizers.models.WordLevel(dict(zip(WORDS, range(7), strict=True)), unk_token="[UNK]")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), unk_token="[UNK]"
    )
    fast.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@needs("transformers")
def test_tokens_are_read_by_their_vocabulary_alone(folder, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", refuse)
    text = detokenizer(str(folder))
    assert text([1, 2, 3, 4, 5, 6]) == "the cat sat on a mat"
    assert text([1, 2, -100, -100]) == "the cat"
    for none in ([1, 1, 1, 0], [7, 1], [-100], []):
        assert text(none) is None


@needs("transformers")
def test_a_view_shows_tokens_as_text(folder, tmp_path):
    path = write(tmp_path / "a.zip", [{"ids": torch.tensor([1, 2, 3, 4, 5, 6, 1, 2])}])
    with CachedDataset.from_cache(path) as ds:
        viewer = ds.view(block=False, open_browser=False, tokenizer=str(folder))
        try:
            with urlopen("/".join([*viewer.url.split("/")[:4], "api/0/sample/0"])) as answer:
                (leaf,) = json.load(answer)["leaves"]
        finally:
            viewer.close()
    assert leaf["media"]["text"] == "the cat sat on a mat the cat"


@needs("transformers")
@pytest.mark.parametrize("name", ["./nothing-here", "someone/no-such-tokenizer"])
def test_a_tokenizer_that_is_not_there_is_named_and_not_fetched(tmp_path, name, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=f'no tokenizer at "{name}": .*; give the folder'):
        detokenizer(name)
    path = write(tmp_path / "a.zip", [{"ids": torch.arange(9)}])
    result = CliRunner().invoke(main, ["view", str(path), "--no-browser", "--tokenizer", name])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f'edcache: no tokenizer at "{name}"')
    assert result.stderr.endswith("(--tokenizer)\n")
    assert result.stderr.count("\n") == 1


def test_without_transformers_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    path = write(tmp_path / "a.zip", [{"ids": torch.arange(9)}])
    result = CliRunner().invoke(main, ["view", str(path), "--no-browser", "--tokenizer", "t"])
    assert (result.exit_code, result.stderr) == (
        1,
        "edcache: a tokenizer takes transformers; pip install transformers\n",
    )
