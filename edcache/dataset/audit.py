"""What a job read: the sampler that a state is of, the draws of a step, and the check of a log of batches."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from edcache import base
from edcache.base import OptionError, shown
from edcache.dataset import label_samplers, samplers
from edcache.dataset.batch_log import batch_hash, indices_hash
from edcache.dataset.epoch import EpochSampler, known_draws
from edcache.dataset.mixture import Mixture
from edcache.dataset.state import State, check_shape

_HEAD = {"rank", "ranks", "batch_size", "is_stored", "state"}
_STEP = {"rank", "step", "indices", "batch"}
_ORDERS: dict[str, type[EpochSampler]] = {
    kind.__name__: kind
    for kind in (
        samplers.Sequential,
        samplers.Shuffle,
        samplers.ChunkShuffle,
        label_samplers.Balanced,
        label_samplers.Weighted,
        label_samplers.ByLength,
        Mixture,
    )
}


def sampler_of(ds: Any, state: State, ranks: int = 1, rank: int = 0) -> EpochSampler:
    """The sampler that a state is of, at its place.

    Raises:
        OptionError: the state is of another archive or view, of no sampler of edcache, or does not say what
            the order is made of.
    """
    check_shape(state)
    kind, arguments = _ORDERS.get(state["order"]), dict(state.get("arguments") or {})
    if kind is None:
        raise OptionError(f"a state of order={shown(state['order'])}; give one of {', '.join(_ORDERS)}")
    if kind is not samplers.Sequential:
        arguments["seed"] = state["seed"]
    if kind is Mixture:
        weights = {}
        for piece in state["weights"].split():
            start, _, counts = piece.partition(":")
            weights[int(start)] = [int(count) for count in counts.split("/")]
        arguments |= {"weights": weights.pop(0), "schedule": weights}
    try:
        sampler = kind(ds, num_replicas=ranks, rank=rank, **arguments)
    except TypeError as error:
        raise OptionError(
            f"a state of {state['order']} that was made with an array ({error}); make it with the name of a "
            "label, or ask the sampler itself: sampler.which(step)"
        ) from None
    sampler.load_state_dict(state)
    return sampler


def drawn_at(ds: Any, sampler: EpochSampler, step: int, batch_size: int) -> list[dict[str, Any]]:
    """What seeded transforms noted in `ctx` at a step of a sampler: a dict for each sample.

    Empty ones where nothing is seeded. Cost: reads the samples, and calls the transforms.
    """
    positions = sampler.which(step, batch_size=batch_size)
    if not ds._is_seeded:
        return [{} for _ in positions]
    items = 1 if sampler._gives_lists else batch_size
    draws = next(known_draws(sampler, ds, iter([positions]), step * items))
    return [ctx for _, ctx in ds.ctx(lambda sample: sample).__getitems__(draws)]


class LogReport(NamedTuple):
    """What the check of a log came to. problems: texts, each with its step and rank.

    steps: that were compared. batches: of which the content was compared too.
    """

    problems: list[str]
    steps: int
    batches: int


def verify_log(ds: Any, path: str | os.PathLike[str]) -> LogReport:
    """Compare a log with the order and the content of the dataset that it was written of.

    Args:
        ds: the dataset, or the view of it that was iterated, without transforms.
    Raises:
        OptionError: the log is of another dataset or view, or has no line that reads.

    That a log stops early is no problem: whoever reads may stop too. Cost: reads every batch again.
    """
    problems: list[str] = []
    heads: dict[int, tuple[EpochSampler, int, bool]] = {}
    # The next step of each rank.
    due: dict[int, int] = {}
    steps = batches = 0
    lines = _lines(path)
    following = [line for _, line in lines[1:]] + [None]
    for (number, line), follows in zip(lines, following, strict=True):
        if line is None:
            # A killed process leaves half a line, behind which an iteration begins or nothing comes.
            if follows is not None and "state" not in follows:
                problems.append(f"line {number:,}: it does not read")
        elif line.keys() == _HEAD:
            sampler = sampler_of(ds, line["state"], line["ranks"], line["rank"])
            heads[line["rank"]] = sampler, line["batch_size"] or 1, line["is_stored"]
            due[line["rank"]] = 0
        elif line.keys() != _STEP or type(line["step"]) is not int or line["rank"] not in heads:
            problems.append(f"line {number:,}: not a line of a log, or of an iteration that did not begin")
        else:
            sampler, size, is_stored = heads[line["rank"]]
            where = f"line {number:,}: rank {line['rank']}, epoch {sampler.epoch}, step {line['step']:,}"
            steps += 1
            if line["step"] != due[line["rank"]]:
                problems.append(f"{where}: step {due[line['rank']]:,} is due")
            due[line["rank"]] = line["step"] + 1
            positions = sampler.which(line["step"], batch_size=size)
            if indices_hash(positions) != line["indices"]:
                problems.append(f"{where}: other samples than the order has")
            elif is_stored:
                batches += 1
                if batch_hash(ds._batch(positions).collated()) != line["batch"]:
                    problems.append(f"{where}: the same samples, with another content")
    if not heads:
        raise OptionError(f"{os.fspath(path)}: no log of batches; give what ds.loader(log=) wrote")
    return LogReport(problems, steps, batches)


def _lines(path: str | os.PathLike[str]) -> list[tuple[int, dict[str, Any] | None]]:
    """The number and the content of each line that is not empty; None for one that does not read."""
    lines: list[tuple[int, dict[str, Any] | None]] = []
    with open(path, "rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                try:
                    line = base.loads(text)
                except ValueError:
                    line = None
                lines.append((number, line if isinstance(line, dict) else None))
    return lines
