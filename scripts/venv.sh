# shellcheck shell=bash
# Sourced by the other scripts: makes a venv where there is none and installs the extra named in $1 into it.
# $2 is its folder, .venv unless given; $python is its interpreter afterwards.
set -euo pipefail
# Without compiled files each process takes 5 s to import torch instead of 2, and the tests start thousands.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=$1
venv=${2:-.venv}
python=$venv/bin/python
stamp=$venv/.installed-$extra

if [ -L "$venv" ]; then
    # Of another checkout, which is installed in it and stays so; this one is imported from here.
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    return
fi
if [ ! -x "$python" ]; then
    echo "making $venv, an environment of this folder's own" >&2
    "${PYTHON:-python3}" -m venv "$venv"
fi
if [ ! -e "$stamp" ] || [ setup.py -nt "$stamp" ] || [ scripts/constraints.txt -nt "$stamp" ]; then
    echo "installing edcache[$extra] into $venv, quietly; where torch is not at hand it is fetched, 0.2 to 3 GB" >&2
    # Python compiles what is imported, which is a small part; to compile all takes a minute.
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --constraint scripts/constraints.txt --editable ".[$extra]" >&2
    touch "$stamp"
    echo "installed; the first start of Python compiles what it imports" >&2
fi
