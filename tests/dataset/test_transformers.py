"""Collators and Trainer of transformers read a cache as they read a list; a model takes what we collate."""

import pytest
import torch
from likeness import same
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader, Subset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

import edcache
from edcache import CachedDataset, CacheWriter

COUNT = 24
WORDS = ["[PAD]", "[UNK]", "[MASK]", *"abcdefgh"]
CONFIG = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    num_labels=3,
    max_position_embeddings=32,
)


def tokenizer():
    words = Tokenizer(models.WordLevel(dict(zip(WORDS, range(99), strict=False)), unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


def encoded(k):
    return dict(tokenizer()(" ".join("abcdefgh"[i % 8] for i in range(k, k + 1 + k % 11))))


def labelled(k):
    return encoded(k) | {"label": k % 3}


def tagged(k):
    return encoded(k) | {"labels": [i % 3 for i in encoded(k)["input_ids"]]}


def fixed(k):
    return {"input_ids": torch.tensor([3 + k % 8] * 6), "label": k % 3}


def ours(**options):
    pad = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}
    return edcache.collate(pad={name: pad[name] for name in encoded(0)}, as_dict=True, **options)


CASES = {
    "WithPadding": (labelled, DataCollatorWithPadding(tokenizer()), BertForSequenceClassification),
    "LanguageModeling": (encoded, DataCollatorForLanguageModeling(tokenizer()), BertForMaskedLM),
    "TokenClassification": (
        tagged,
        DataCollatorForTokenClassification(tokenizer()),
        BertForTokenClassification,
    ),
    "default": (fixed, default_data_collator, BertForSequenceClassification),
    "ours": (labelled, ours(), BertForSequenceClassification),
    "ours, left": (labelled, ours(side="left", multiple_of=8), BertForSequenceClassification),
}


def cache(path, make):
    with CacheWriter(path) as w:
        w.extend(map(make, range(COUNT)))
    return CachedDataset.from_cache(path)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("workers", [0, 2])
def test_collators_read_it_as_a_list(tmp_path, case, workers):
    make, collator, model = case
    ds = cache(tmp_path / "a.zip", make)
    for dataset in (ds, ds[::-1][3:]) if workers == 0 else (Subset(ds, range(4, 20)),):
        expected = [dataset[k] for k in range(len(dataset))]

        def load(samples):
            loader = DataLoader(
                samples, 4, collate_fn=collator, num_workers=workers, generator=torch.Generator()
            )
            torch.manual_seed(3)
            return [dict(batch) for batch in loader]

        found = load(dataset)
        if collator is not CASES["LanguageModeling"][1]:  # draws what it masks
            assert same(found, load(expected))
        assert model(CONFIG)(**found[0]).loss.isfinite()


def test_what_as_dict_makes_is_what_the_tokenizers_collator_makes(tmp_path):
    ds = cache(tmp_path / "a.zip", labelled)
    for side in ("right", "left"):
        collator = DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=4)
        collator.tokenizer.padding_side = side
        mine = next(iter(DataLoader(ds, COUNT, collate_fn=ours(side=side, multiple_of=4))))
        theirs = dict(next(iter(DataLoader(ds, COUNT, collate_fn=collator))))
        assert mine.keys() == theirs.keys()
        assert all(same(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("case", ["WithPadding", "default", "ours"])
def test_a_trainer_trains_on_it_as_on_a_list(tmp_path, case):
    make, collator, model = CASES[case]
    ds = cache(tmp_path / "a.zip", make)
    losses = []
    for samples in (ds[2:], [ds[k] for k in range(2, COUNT)]):
        options = TrainingArguments(
            tmp_path / "out",
            max_steps=3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=5,
        )
        torch.manual_seed(1)
        trainer = Trainer(model(CONFIG), options, train_dataset=samples, data_collator=collator)
        losses.append(trainer.train().training_loss)
    assert losses[0] == losses[1]
