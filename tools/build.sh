#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, configures and builds: tools/build.sh [TARGET ...]. The preset is MOESAIC_PRESET, or
# chosen by tools/env.sh; build/preset names it afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
source tools/env.sh
preset=$(moesaic_wanted_preset)

configure() { # PRESET: is it configured? What it said is in configure.log.
  mkdir -p "build/$1"
  cmake --preset "$1" >"build/$1/configure.log" 2>&1
}

if ! configure "$preset"; then
  cat "build/$preset/configure.log" >&2
  # A GPU whose toolkit does not fit is no reason to do without the CPU.
  if [ "$preset" != cuda ] || [ -n "${MOESAIC_PRESET:-}" ]; then exit 1; fi
  echo "build: the CUDA build could not be configured (see above); building for the CPU" >&2
  preset=release
  if ! configure "$preset"; then
    cat "build/$preset/configure.log" >&2
    exit 1
  fi
fi
echo "$preset" >build/preset
cmake --build "build/$preset" --target "${@:-all}"
