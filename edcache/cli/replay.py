"""replay: the samples that a step of a job had, and whether a log of batches is true."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from edcache import base, dataset
from edcache.base import OptionError
from edcache.cli import output as out
from edcache.cli.call import load
from edcache.cli.flags import LABEL, PATH, row_flags

_COUNT = click.IntRange(min=1)
_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


@click.command()
@click.argument("data", metavar="PATH|MODULE:FUNCTION", type=PATH)
@click.argument("state", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--step", metavar="N", type=click.IntRange(min=0), help="Counted from the place of STATE.")
@click.option("--ranks", metavar="N", type=_COUNT, default=1, help="How many ranks share an epoch.")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), default=0, help="Which of them, from 0.")
@click.option("--batch-size", metavar="N", type=_COUNT, default=1, help="Of a rank's batch.")
@click.option("--where", metavar="EXPR", type=LABEL, help="Of a view: the filter that made it.")
@click.option("--log", metavar="LOG", type=click.Path(exists=True, dir_okay=False), help="Compare this log.")
@click.option("--view", "opens_view", is_flag=True, help="Open the samples in a browser.")
@row_flags
def replay(
    data: str, state: str | None, step: int | None, log: str | None, where: str | None, **options: Any
) -> None:
    """Show the samples of a step of a job, or compare a log.

    PATH is the archive. MODULE:FUNCTION is imported with the current directory on the path and called: it
    returns the dataset as the job has it, with its views and transforms, or a mixture. What its seeded
    transforms noted in ctx is shown too.

    STATE is a file with what state_dict() of a sampler or of ds.loader returned, as JSON. A sampler that
    gives batches takes no --batch-size. LOG is what ds.loader(log=) wrote: the order of every step is
    computed again and, unless a transform changed them, its samples are read again.

    \b
    Example:
      edcache replay train.zip state.json --step 41237 --ranks 8 --rank 3 --batch-size 64
      edcache replay train:make_dataset state.json --step 41237 --view
      edcache replay train.zip --log train.log
    """
    if (state is None) == (log is None) or (state is None) != (step is None):
        raise click.UsageError("give STATE and --step, or --log")
    ds = _opened(data)
    ds = ds if where is None else ds.filter(where)
    if log is not None:
        _compare(ds, log)
    elif state is not None and step is not None:
        _show(ds, state, step, **options)


def _opened(data: str) -> Any:
    if os.path.exists(data) or not _FUNCTION.fullmatch(data):
        return dataset.CachedDataset.from_cache(data)
    made = load(data)()
    made = made.dataset if isinstance(made, dataset.Mixture) else made
    if not isinstance(made, dataset.Samples):
        raise OptionError(
            f"{data} returned {type(made).__name__}; let it return a dataset of edcache or a mixture"
        )
    return made


def _show(
    ds: Any, state: str, step: int, ranks: int, rank: int, batch_size: int, opens_view: bool, **listing: Any
) -> None:
    with open(state, "rb") as file:
        try:
            text = base.loads(file.read())
        except ValueError as error:
            raise OptionError(f"{state}: no JSON: {error}; write it by json.dump(state)") from None
    sampler = dataset.sampler_of(ds, text, ranks, rank)
    positions = sampler.which(step, batch_size=batch_size)
    view = ds[positions]
    if opens_view:
        ds.set_epoch(sampler.epoch)
        view.view()
        return
    header, columns = ["position", "index"], [positions.tolist(), view.indices.tolist()]
    draws = dataset.drawn_at(ds, sampler, step, batch_size)
    if any(draws):
        header.append("draws")
        columns.append(draws)
    labels = [view.labels.table[name].to_pylist() for name in view.labels]
    rows = zip(*columns, *labels, strict=True)
    out.print_rows((*header, *view.labels), rows, len(positions), fixed=len(header), **listing)


def _compare(ds: Any, log: str) -> None:
    report = dataset.verify_log(ds, log)
    for problem in report.problems:
        click.echo(f"{os.fspath(log)}: {problem}", err=True)
    click.echo(f"{out.plural(report.steps, 'step')} compared, {report.batches:,} of them by their content")
    if report.problems:
        raise click.exceptions.Exit(out.FAILED)
