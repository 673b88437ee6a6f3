#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds libFuzzer's targets into build/fuzz. Those in library/ need the library that tools/build.sh builds, and are left
# out without it.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools/setup.sh clang libclang-rt-dev
source tools/env.sh
BUILD=${MOESAIC_FUZZ_BUILD:-build/fuzz}
mkdir -p build
library=$PWD/build/$(moesaic_built_preset)/lib/libmoesaic.so
if [ ! -e "$library" ]; then
  echo "fuzz: no $library, so only the targets that need no LibTorch" >&2
  library=
fi
cmake -G Ninja -S tests/fuzz -B "$BUILD" -DCMAKE_CXX_COMPILER=clang++ -DMOESAIC_LIBRARY="$library" >"$BUILD.log" ||
  { cat "$BUILD.log" >&2; exit 1; }
cmake --build "$BUILD"
