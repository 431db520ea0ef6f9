"""What users see of the package is what tests/project/surface.txt says."""

from surface import FILE, surface


def test_the_surface_is_what_is_written():
    assert surface().splitlines() == FILE.read_text(encoding="utf-8").splitlines(), (
        "what users see has changed; if that was meant, run scripts/generate surface and commit it"
    )
