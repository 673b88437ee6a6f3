#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh checkout to a table, a figure and a smaller model: installs what is missing, builds, then trains, prunes
# and measures. Arguments go to `moesaic reproduce quickstart`; --scale quick takes a minute.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/tools/build.sh" moesaic_program >&2
case " $*" in
  *" --out"*) ;;      # relative to where the user stands
  *) cd "$root" ;;    # else in this checkout's checkpoints/
esac
exec "$root/build/$(cat "$root/build/preset")/bin/moesaic" reproduce quickstart "$@"
