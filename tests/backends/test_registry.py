"""A path or a URL leads to its backend, by its scheme."""

import pytest

from edcache.backends.remote.store import RemoteStore
from edcache.errors import OptionError
from edcache.storage.registry import located
from edcache.writer.store import store_at


def test_a_path_is_told_from_a_url_once(tmp_path, monkeypatch):
    store = store_at("memory://shelf/train.zip")
    assert isinstance(store, RemoteStore)
    assert store_at(store) is store
    monkeypatch.chdir(tmp_path)
    for path in ("train.zip", "c:/train.zip", "a:b.zip", f"file://{tmp_path}/train.zip"):
        assert store_at(path).local_path() == str(tmp_path / path.removeprefix("file:///")).replace(
            f"{tmp_path}{tmp_path}", str(tmp_path)
        )
    for url in ("https://h/a.zip", "s3://b/a.zip", "zip://a.zip::https://h/b.zip"):
        with pytest.raises(OptionError, match="this takes"):
            located(url).local_path()
    with pytest.raises(OptionError, match="train.zip: storage_options are for URLs, and this is a path"):
        store_at("train.zip", {"key": "k"})
