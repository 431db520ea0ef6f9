"""Commands in this process, with what they print and the exit status."""

from click.testing import CliRunner

try:
    RUNNER = CliRunner(mix_stderr=False)
except TypeError:  # click 8.2 and newer always keep the two apart
    RUNNER = CliRunner()
