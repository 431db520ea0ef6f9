"""What Lightning trains, and how; apart from the tests, as importing Lightning takes seconds and 160 MB."""

import atexit
import json

import torch
from optional import need
from torch.utils.data import DataLoader

from edcache import CachedDataset

need("pytorch_lightning")
import pytorch_lightning as lightning  # noqa: E402 - behind the question whether it is there


class Tiny(lightning.LightningModule):
    """Notes what it is trained on; in a file of its rank, for what is trained in other processes."""

    def __init__(self, folder=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        self.folder, self.seen = folder, []

    def on_train_start(self):
        if torch.distributed.is_initialized():
            # A rank that ends with it open may abort: gloo's thread lets go of its last work after Python has ended.
            atexit.register(torch.distributed.destroy_process_group)

    def training_step(self, batch, number):
        self.seen.append([self.current_epoch, batch["index"].tolist()])
        return torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["label"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_end(self):
        if self.folder is not None:
            (self.folder / str(self.global_rank)).write_text(json.dumps(self.seen))


class Filled(lightning.LightningDataModule):
    """Its cache is filled by the ranks, in `setup`."""

    def __init__(self, source, path):
        super().__init__()
        self.source, self.path = source, path

    def setup(self, stage):
        self.ds = CachedDataset(self.source, self.path, chunk_size=4, progress=False, spot_check=False)

    def train_dataloader(self):
        return DataLoader(self.ds, 8, shuffle=True)


class Interrupted(lightning.Callback):
    """Saves a checkpoint at a step of the second epoch, and stops."""

    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 11:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def trainer(**options):
    return lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
