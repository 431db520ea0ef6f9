"""The picture: what a shuffled epoch brings a second, one panel a workload."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from benchmark import machine
from benchmark.peers import BY_NAME
from benchmark.report import rate
from benchmark.results import Results, WorkloadResult

OURS, OTHERS, BOUND = "#c2410c", "#b8c0cc", "#e8ebef"
TEXT, EDGE = "#1f2933", "#52606d"


def draw(results: Results, file: Path) -> None:
    """Write the picture as PNG."""
    shown = [(n, w) for n, w in results.workloads.items() if w.ranked()]
    columns = min(2, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    tallest = max((len(w.ranked()) for _, w in shown), default=1)
    figure, axes = plt.subplots(
        rows, columns, figsize=(7.4 * columns, rows * (0.27 * tallest + 1.0) + 1.0), squeeze=False
    )
    for panel, (name, workload) in zip(axes.flat, shown, strict=False):
        _panel(panel, name, workload)
    for panel in axes.flat[len(shown) :]:
        panel.axis("off")
    figure.suptitle(
        "Shuffled epochs, samples per second (log scale; longer is better)", fontsize=14, color=TEXT
    )
    figure.legend(
        handles=[
            Patch(color=OURS, label="edcache"),
            Patch(color=OTHERS, label="others"),
            Patch(facecolor=BOUND, edgecolor=EDGE, hatch="///", linewidth=0.5, label="everything in RAM"),
            Line2D([], [], marker="D", linestyle="", color="white", markeredgecolor=TEXT, label="2 workers"),
        ],
        loc="lower center",
        ncols=4,
        frameon=False,
    )
    figure.text(
        0.5,
        0.042 if rows > 1 else 0.08,
        "bar: no workers (own loaders: their faster thread count) - "
        f"{machine.in_words(results.machine)} - {results.date}",
        ha="center",
        fontsize=8,
        color=EDGE,
    )
    figure.tight_layout(rect=(0, 0.055 if rows > 1 else 0.11, 1, 0.98))
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _panel(panel: Axes, name: str, workload: WorkloadResult) -> None:
    ranked = workload.ranked()[::-1]
    bars = {
        n: s.rate("epoch_0") or max(s.rate("threads_1") or 0, s.rate("threads_2") or 0) for n, s in ranked
    }
    ranked.sort(key=lambda pair: bars[pair[0]])
    with_workers = [rate_2 for _, s in ranked if (rate_2 := s.rate("epoch_2"))]
    low = min([*bars.values(), *with_workers]) / 1.6
    for place, (system_name, system) in enumerate(ranked):
        system_kind = BY_NAME[system_name]
        in_ram = system_kind.home.startswith("ram:")
        color = OURS if system_kind.is_ours else BOUND if in_ram else OTHERS
        panel.barh(
            place,
            bars[system_name] - low,
            left=low,
            color=color,
            height=0.72,
            hatch="///" if in_ram else None,
            edgecolor=EDGE if in_ram else color,
            linewidth=0.5,
        )
        rate_2 = system.rate("epoch_2")
        furthest = bars[system_name]
        if rate_2:
            panel.plot(rate_2, place, "D", color="white", markeredgecolor=TEXT, markersize=4.5)
            furthest = max(furthest, rate_2 * 1.08)
        panel.annotate(
            rate(bars[system_name]),
            (furthest, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=TEXT,
            fontweight="bold" if system_kind.is_ours else "normal",
        )
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1,)))
    panel.xaxis.set_major_formatter(_tick)
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlim(low, max(s.best_rate() or 0 for _, s in ranked) * 3)
    panel.set_yticks(range(len(ranked)), [BY_NAME[n].title for n, _ in ranked], fontsize=9)
    for label, (system_name, _) in zip(panel.get_yticklabels(), ranked, strict=True):
        if BY_NAME[system_name].is_ours:
            label.set_color(OURS)
            label.set_fontweight("bold")
    panel.set_title(f"{name}: {workload.title}", fontsize=10.5, loc="left", color=TEXT)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", color="#e4e7eb", linewidth=0.6)
    panel.set_axisbelow(True)


def _tick(value: float, _: int) -> str:
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
