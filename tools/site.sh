#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/site: the project's Markdown by mkdocs-material and the reference of the public headers by Doxygen. A
# dead link, a warning of either, or a public class or function without a comment ends it. With --links, external links
# are checked first (tools/pages.py links), whose exit code other than 0 ends it, too. Installs what it needs: Doxygen,
# and Python wheels of exact versions into an environment of their own beside MOESAIC_VENV.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/env.sh
REQUIREMENTS=tools/python/requirements-site.txt
VENV=$(dirname "$MOESAIC_VENV")/site-venv
PAGES=build/site-pages

fail() { # TEXT
  printf 'site: NOT BUILT: %s\n' "$*" >&2
  exit 1
}

python3 tools/pages.py check
case ${1:-} in
  "") ;;
  --links) python3 tools/pages.py links ;;
  *) fail "unknown option '$1'; the option is --links" ;;
esac
command -v doxygen >/dev/null || tools/setup.sh doxygen || fail "Doxygen is missing and cannot be installed"

complete=$VENV/.complete-$(sha256sum "$REQUIREMENTS" | cut -c 1-16)
if [ ! -f "$complete" ]; then
  mkdir -p "$(dirname "$VENV")"
  python3 -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$REQUIREMENTS" ||
    fail "the wheels of $REQUIREMENTS cannot be installed into $VENV, which needs a network once"
  rm -f "$VENV"/.complete-*
  touch "$complete"
fi

rm -rf build/site build/api-xml "$PAGES"
mkdir -p "$PAGES"
python3 tools/pages.py site "$PAGES"
doxygen docs/Doxyfile
python3 tools/pages.py reference build/api-xml
NO_MKDOCS_2_WARNING=1 "$VENV/bin/python" -m mkdocs build --config-file docs/mkdocs.yml 2> build/site.log ||
  { cat build/site.log >&2; fail "mkdocs found what is above"; }
echo "site: build/site/index.html"
