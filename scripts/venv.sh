# Sourced by the other scripts: makes .venv where there is none and installs the extras named in $1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=$1
stamp=.venv/.installed-$extra

if [ ! -x .venv/bin/python ]; then
    echo "making .venv" >&2
    "${PYTHON:-python3}" -m venv .venv
fi
if [ ! -e "$stamp" ] || [ setup.py -nt "$stamp" ] || [ scripts/constraints.txt -nt "$stamp" ]; then
    echo "installing edcache[$extra] into .venv" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint scripts/constraints.txt --editable ".[$extra]" >&2
    touch "$stamp"
fi
