#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/wheel/moesaic-*.tar.gz and from it moesaic-*.whl, and tries this: its size, its libraries, its types by
# pyright, how long an import takes, and its tests in an empty environment that has PyTorch alone, then with all packages
# that they ask for, so that none is skipped. tools/wheel.sh FILE tries a wheel that is there. Installs what it needs:
# PyTorch by tools/setup.sh, and Python wheels of exact versions into environments of their own beside MOESAIC_VENV.
set -euo pipefail
cd "$(dirname "$0")/.."
MAX_BYTES=15000000
MAX_IMPORT_SECONDS=3
OUT=build/wheel
BUILD=build/wheel-build  # as deep as build/release, whose objects ccache then has

fail() { # TEXT
  printf 'wheel: FAILED: %s\n' "$*" >&2
  exit 1
}

if [ $# -eq 0 ]; then tools/setup.sh; fi
source tools/env.sh

venv=$(dirname "$MOESAIC_VENV")/wheel-venv
if ! { moesaic_install "$venv" tools/python/requirements-wheel.txt && moesaic_install_peers; }; then
  fail "the wheels of tools/python/requirements-{wheel,peers}.txt cannot be installed, which needs a network once"
fi

wheel=${1:-}
mkdir -p "$OUT"
if [ -z "$wheel" ]; then
  rm -f "$OUT"/*.whl "$OUT"/*.tar.gz
  "$venv/bin/python" -m build --no-isolation --skip-dependency-check --outdir "$OUT" \
    -C build-dir="$BUILD" . >"$OUT/build.log" 2>&1 ||
    { tail -n 30 "$OUT/build.log" >&2; fail "see $OUT/build.log"; }
  wheel=$(echo "$OUT"/*.whl)
fi
case "$wheel" in *-py3-none-linux_x86_64.whl) ;; *) fail "$wheel has the tag of one Python" ;; esac
bytes=$(stat -c %s "$wheel")
[ "$bytes" -lt $MAX_BYTES ] || fail "$wheel has $bytes bytes, at most $MAX_BYTES"

# The packages of MOESAIC_VENV's PyTorch, linked: those that come with it, without others.
rm -rf "$OUT/env"
"$MOESAIC_VENV/bin/python" -m venv "$OUT/env"
site=$(echo "$PWD/$OUT"/env/lib/python3*/site-packages)
for part in "$MOESAIC_VENV"/lib/python3*/site-packages/*; do
  case "${part##*/}" in
    numpy* | pillow* | PIL | onnx* | ml_dtypes* | protobuf* | google | flatbuffers*) ;;
    *) [ -e "$site/${part##*/}" ] || ln -s "$part" "$site" ;;
  esac
done
"$OUT/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
if nm --dynamic --undefined-only "$site/moesaic/lib/libmoesaic.so" "$site/moesaic/bin/moesaic" | grep ' _\?Py'; then
  fail "the symbols above are CPython's"
fi
"$venv/bin/python" -m pyright --project pyproject.toml --pythonpath "$OUT/env/bin/python"
"$OUT/env/bin/moesaic" list recipes >/dev/null
for _ in 1 2 3; do
  "$OUT/env/bin/python" -c 'import time; began = time.perf_counter(); import moesaic; print(time.perf_counter() - began)'
done | sort -g >"$OUT/import-seconds"
seconds=$(head -n 1 "$OUT/import-seconds")
awk "BEGIN { exit !($seconds < $MAX_IMPORT_SECONDS) }" || fail "an import takes $seconds s, at most $MAX_IMPORT_SECONDS"
"$OUT/env/bin/python" -B -W ignore tests/python/package_test.py

for part in "$MOESAIC_VENV"/lib/python3*/site-packages/* "$moesaic_peers"/lib/python3*/site-packages/*; do
  [ -e "$site/${part##*/}" ] || ln -s "$part" "$site"
done
for test in "package_test.py" "parquet_test.py tools/python"; do
  # shellcheck disable=SC2086  # the words are split on purpose
  "$OUT/env/bin/python" -B -W ignore tests/python/$test 2>&1 | tee "$OUT/tests.log"
  if grep -q skipped= "$OUT/tests.log"; then fail "$test skips tests, see above"; fi
done
echo "wheel: $wheel, $bytes bytes, imported in $seconds s"
