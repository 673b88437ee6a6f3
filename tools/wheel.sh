#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/wheel/moesaic-*.whl and tries it: its size, its libraries, its types by pyright, and its tests in an empty
# environment that has PyTorch alone. tools/wheel.sh FILE tries a wheel that is there. Installs what it needs: PyTorch by
# tools/setup.sh, and Python wheels of exact versions into an environment of their own beside MOESAIC_VENV.
set -euo pipefail
cd "$(dirname "$0")/.."
REQUIREMENTS=tools/python/requirements-wheel.txt
MAX_BYTES=15000000
OUT=build/wheel
BUILD=build/wheel-build  # as deep as build/release, whose objects ccache then has

fail() { # TEXT
  printf 'wheel: FAILED: %s\n' "$*" >&2
  exit 1
}

if [ $# -eq 0 ]; then tools/setup.sh; fi
source tools/env.sh
venv=$(dirname "$MOESAIC_VENV")/wheel-venv
complete=$venv/.complete-$(sha256sum "$REQUIREMENTS" | cut -c 1-16)
if [ ! -f "$complete" ]; then
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$REQUIREMENTS" ||
    fail "the wheels of $REQUIREMENTS cannot be installed into $venv, which needs a network once"
  rm -f "$venv"/.complete-*
  touch "$complete"
fi

wheel=${1:-}
mkdir -p "$OUT"
if [ -z "$wheel" ]; then
  rm -f "$OUT"/*.whl
  "$venv/bin/python" -m build --wheel --no-isolation --skip-dependency-check --outdir "$OUT" \
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
    numpy* | pillow* | PIL) ;;
    *) [ -e "$site/${part##*/}" ] || ln -s "$part" "$site" ;;
  esac
done
"$OUT/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
if nm --dynamic --undefined-only "$site/moesaic/lib/libmoesaic.so" "$site/moesaic/bin/moesaic" | grep ' _\?Py'; then
  fail "the symbols above are CPython's"
fi
"$venv/bin/python" -m pyright --project pyproject.toml --pythonpath "$OUT/env/bin/python"
"$OUT/env/bin/moesaic" list recipes >/dev/null
"$OUT/env/bin/python" -B -W ignore tests/python/package_test.py
echo "wheel: $wheel, $bytes bytes"
