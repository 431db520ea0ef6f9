"""Arguments, and the order of things."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmark import machine, plot, report
from benchmark.install import install
from benchmark.peers import BY_NAME
from benchmark.results import Results, SystemResult
from benchmark.rounds import Plan, Rounds
from benchmark.workloads import SHAPES, generate

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "benchmarks.md"


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    plan = Plan()
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure edcache beside other ways to keep a dataset, in one run."
    )
    add = parser.add_argument
    add("--only", type=_some(SHAPES), default=list(SHAPES), metavar="WORKLOADS", help=", ".join(SHAPES))
    add("--peers", type=_some(BY_NAME), default=list(BY_NAME), metavar="SYSTEMS", help=", ".join(BY_NAME))
    add("--scale", type=float, default=1.0, help="share of the samples, for a smoke run: 0.05")
    add("--repeats", type=int, default=plan.repeats, help="most measurements of each kind (%(default)s)")
    add(
        "--seconds",
        type=float,
        default=plan.seconds,
        help="after which a system is timed no more (%(default)s)",
    )
    add("--out", type=Path, default=HERE, help="folder for results.md, .json and .png")
    add("--report", action="store_true", help="measure nothing: tables and plot of the results.json there")
    add("--docs", action="store_true", help="put the short table into docs/reference/benchmarks.md")
    return parser.parse_args()


def _some(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    names = list(allowed)

    def parsed(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(names)}")
        return chosen

    return parsed


def main() -> None:
    """Measure, or only report."""
    options = arguments()
    if options.docs:
        report.check_markers(PAGE)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    if options.report:
        results = Results.load(file)
    else:
        results = measured(options, file)
    (options.out / "results.md").write_text(report.markdown(results))
    plot.draw(results, options.out / "results.png")
    if options.docs:
        report.into_page(results, PAGE)


def measured(options: argparse.Namespace, file: Path) -> Results:
    """Install, generate, measure; what there is is saved after every workload."""
    began = time.monotonic()
    chosen = [BY_NAME[name] for name in options.peers]
    failures = install(chosen)
    systems = [system for system in chosen if system.name not in failures]
    plan = Plan(options.repeats, options.seconds)
    results = Results(
        date=datetime.date.today().isoformat(),
        machine=machine.describe(),
        options={"scale": options.scale, "repeats": plan.repeats, "seconds": plan.seconds},
        versions={name: importlib.metadata.version(name) for name in ("torch", "numpy")},
    )
    for name in options.only:
        print(f"{name}: generating", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="edcache-bench-", ignore_cleanup_errors=True) as folder:
            workload = generate(name, Path(folder, "generated"), options.scale)
            Rounds(workload, systems, plan, Path(folder), results).run()
        for failed, reason in failures.items():
            results.workloads[name].systems[failed] = SystemResult(missing=reason)
        results.options["minutes"] = round((time.monotonic() - began) / 60, 1)
        results.save(file)
    return results


if __name__ == "__main__":
    main()
