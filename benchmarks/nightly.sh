#!/usr/bin/env bash
# Every test that is marked slow, file by file, to the end whatever fails; one page, benchmarks/results/nightly.md.
#   benchmarks/nightly.sh [--jobs 2] [--again]     --again: also the files that this commit has been through already
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python
exec "$python" -m benchmarks.nightly "$@"
