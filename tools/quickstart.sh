#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh checkout to a table, a figure and a smaller model: installs what is missing, builds, then trains, prunes
# and measures. Arguments go to `moesaic reproduce quickstart`; --scale quick takes a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/build.sh moesaic_program >&2
exec "build/${MOESAIC_PRESET:-release}/bin/moesaic" reproduce quickstart "$@"
