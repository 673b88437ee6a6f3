#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, configures and builds: tools/build.sh [TARGET ...]. The preset is MOESAIC_PRESET.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
source tools/env.sh
preset=${MOESAIC_PRESET:-release}
log=build/$preset/configure.log
mkdir -p "build/$preset"
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build "build/$preset" --target "${@:-all}"
