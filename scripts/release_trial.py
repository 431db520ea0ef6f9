"""What an installed wheel does on this Python, with torch or without: scripts/release wheel.

The argument is an archive that has labels.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "edcache"


def command(*arguments: str) -> str:
    """What the installed command prints."""
    done = subprocess.run(["edcache", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"edcache {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def installed() -> None:
    """The wheel brought what it should, and nothing beside it."""
    import edcache

    version, package = metadata.version("edcache"), Path(edcache.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not of this venv"
    assert edcache.__version__ == version
    assert command("--version") == f"edcache {version}\n"
    files = {file.parts[0] for file in metadata.files("edcache") or () if file.parts[0] != ".."}
    assert files == {"edcache", f"edcache-{version}.dist-info"}, files
    wanted = {file.relative_to(SOURCE) for file in SOURCE.rglob("*") if file.suffix not in ("", ".pyc")}
    assert {Path("py.typed"), Path("__init__.pyi")} < wanted
    missing = sorted(str(file) for file in wanted if not (package / file).is_file())
    assert not missing, f"the wheel lacks {missing}"


def without_torch(archive: str) -> None:
    """The commands that need no torch."""
    assert "samples" in command("info", archive)
    assert "score" in command("labels", archive)
    assert "label" in command("stats", archive)


def with_torch() -> None:
    """Fill, open, filter, read in batches, check."""
    import torch

    import edcache

    source = [{"image": torch.full((3, 8, 8), i, dtype=torch.uint8), "label": i % 5} for i in range(100)]
    ds = edcache.CachedDataset(
        source, "trial.zip", in_memory_keys=["label"], fingerprint=False, num_workers=2
    )
    part = ds.filter("label == 3")
    batches = [batch["label"].tolist() for batch in torch.utils.data.DataLoader(part, 8, num_workers=1)]
    assert batches == [[3] * 8, [3] * 8, [3] * 4], batches
    assert "100" in command("info", "trial.zip")
    command("verify", "trial.zip")


if __name__ == "__main__":
    installed()
    without_torch(sys.argv[1])
    torch = importlib.util.find_spec("torch") is not None
    if torch:
        with_torch()
    print(f"Python {sys.version.split()[0]}: the wheel works, {'with' if torch else 'without'} torch")
