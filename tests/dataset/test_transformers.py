"""Collators and Trainer of transformers read a cache as they read a list; a model takes what we collate.

It is imported on use: it is large in a process that forks.
"""

import functools
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch
from likeness import same
from optional import needs
from torch.utils.data import DataLoader, Subset
from written import write, written

import edcache
from edcache import CachedDataset
from edcache.samplers import Shuffle

pytestmark = needs("transformers", "accelerate")

COUNT = 24
WORDS = ["[PAD]", "[UNK]", "[MASK]", *"abcdefgh"]


def config():
    import transformers

    return transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
        max_position_embeddings=32,
    )


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

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


class Ours:
    """What docs/howto/shapes.md says: padded fields as tensors, and the label by the name of the model's."""

    def __init__(self, **options):
        self.collate = edcache.collate(pad=dict.fromkeys(encoded(0), 0), **options)

    def __call__(self, samples):
        batch = self.collate(samples)
        inputs = {name: field.values for name, field in batch.items() if name != "label"}
        return inputs | {"labels": batch["label"]}


@functools.cache
def cases():
    """How samples are made, the collator of their batches, and a model that takes these."""
    import transformers as t

    return {
        "WithPadding": (labelled, t.DataCollatorWithPadding(tokenizer()), t.BertForSequenceClassification),
        "LanguageModeling": (encoded, t.DataCollatorForLanguageModeling(tokenizer()), t.BertForMaskedLM),
        "TokenClassification": (
            tagged,
            t.DataCollatorForTokenClassification(tokenizer()),
            t.BertForTokenClassification,
        ),
        "default": (fixed, t.default_data_collator, t.BertForSequenceClassification),
        "ours": (labelled, Ours(), t.BertForSequenceClassification),
        "ours, left": (labelled, Ours(side="left", multiple_of=8), t.BertForSequenceClassification),
    }


CASES = ["WithPadding", "LanguageModeling", "TokenClassification", "default", "ours", "ours, left"]


def cache(path, make):
    return written(path, map(make, range(COUNT)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [0, 2])
def test_collators_read_it_as_a_list(tmp_path, case, workers):
    make, collator, model = cases()[case]
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
        if case != "LanguageModeling":  # draws what it masks
            assert same(found, load(expected))
        assert model(config())(**found[0]).loss.isfinite()


def test_what_is_padded_here_is_what_the_tokenizers_collator_makes(tmp_path):
    from transformers import DataCollatorWithPadding

    ds = cache(tmp_path / "a.zip", labelled)
    for side in ("right", "left"):
        collator = DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=4)
        collator.tokenizer.padding_side = side
        mine = next(iter(DataLoader(ds, COUNT, collate_fn=Ours(side=side, multiple_of=4))))
        theirs = dict(next(iter(DataLoader(ds, COUNT, collate_fn=collator))))
        assert mine.keys() == theirs.keys()
        assert all(same(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("case", ["WithPadding", "default", "ours"])
def test_a_trainer_trains_on_it_as_on_a_list(tmp_path, case):
    from transformers import Trainer, TrainingArguments

    make, collator, model = cases()[case]
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
        trainer = Trainer(model(config()), options, train_dataset=samples, data_collator=collator)
        losses.append(trainer.train().training_loss)
    assert losses[0] == losses[1]


JOB = """
import json, os, sys
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
import edcache
from edcache.samplers import Shuffle

path, folder, last = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Job(Trainer):
    def get_train_dataloader(self):
        sampler = Shuffle(self.train_dataset, seed=3, global_batch_size=10)
        if "workers" in sys.argv:
            return DataLoader(self.train_dataset, batch_sampler=sampler, num_workers=1)
        return self.train_dataset.loader(None, sampler=sampler)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, k):
        if self.training:
            self.seen.append(k.tolist())
        return {"loss": self.layer(k.float()[:, None]).square().mean()}

class Death(TrainerCallback):
    def on_step_end(self, arguments, state, control, model, **others):
        line = [state.global_step, getattr(model, "module", model).seen[-1]]
        with open(f"{folder}/seen-{last}-{arguments.process_index}", "a") as file:
            print(json.dumps(line), file=file)

    def on_save(self, arguments, state, control, **others):
        if state.global_step >= last:
            os._exit(0)

options = TrainingArguments(
    f"{folder}/out", num_train_epochs=3, save_steps=4, use_cpu=True, report_to=[], disable_tqdm=True
)
job = Job(Model(), options, train_dataset=edcache.CachedDataset.from_cache(path), callbacks=[Death()])
job.train(resume_from_checkpoint=last > 4)
"""


@pytest.mark.full
@pytest.mark.parametrize("form", ["loader", "workers"])
def test_a_trainer_goes_on_with_other_devices(tmp_path, form):
    """Amid an epoch, and between two."""
    write(tmp_path / "a.zip", ({"k": k} for k in range(80)))
    expected = Shuffle(CachedDataset.from_cache(tmp_path / "a.zip"), seed=3, global_batch_size=10)
    step = 0
    for ranks, last in ((2, 4), (3, 8), (1, 12), (2, 24)):
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(23_000 + os.getpid() % 20_000 + last)}
        job = [
            subprocess.Popen(
                [sys.executable, "-c", JOB, tmp_path / "a.zip", tmp_path, str(last), form],
                env=os.environ
                | rendezvous
                | {"WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]
        errors = [process.communicate(timeout=600)[1] for process in job]
        assert [process.returncode for process in job] == [0] * ranks, errors
        logs = [(tmp_path / f"seen-{last}-{rank}").read_text().splitlines() for rank in range(ranks)]
        for lines in zip(*logs, strict=True):
            (number,) = {json.loads(line)[0] for line in lines}
            shares = itertools.zip_longest(*(json.loads(line)[1] for line in lines))
            seen = [k for turn in shares for k in turn if k is not None]
            assert number == step + 1
            assert seen == expected.which(step % 8, epoch=step // 8).tolist()
            step += 1
        assert step == last
