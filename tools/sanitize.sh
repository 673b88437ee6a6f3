#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what sanitizers are to watch, and no more, since instrumented programs are slow to build.
#   tools/sanitize.sh parsers   tests_core under AddressSanitizer and UndefinedBehaviorSanitizer, and every target of
#                               libFuzzer for MOESAIC_FUZZ_SECONDS, 20 by default
#   tools/sanitize.sh threads   tests_core, the loader, saves and the pool of runs under ThreadSanitizer
set -euo pipefail
cd "$(dirname "$0")/.."

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# ThreadSanitizer does not see how the threads of Gloo in LibTorch, which is not instrumented, wait for each other.
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1

# The last build that somebody made stays the one that other scripts take.
build() { # PRESET TARGET..
  local before=
  if [ -e build/preset ]; then before=$(cat build/preset); fi
  MOESAIC_PRESET=$1 tools/build.sh "${@:2}"
  if [ -n "$before" ]; then echo "$before" >build/preset; else rm -f build/preset; fi
}

parsers() {
  build asan-ubsan tests_core
  build/asan-ubsan/bin/tests_core --gtest_brief=1
  tests/fuzz/build.sh
  tests/fuzz/run.sh --seconds "${MOESAIC_FUZZ_SECONDS:-20}"
}

# ThreadSanitizer of GCC 12 does not start where the kernel randomises more bits of addresses than it knows, and does not
# see that LibTorch's OpenMP threads wait for each other, so that there is one of these.
watched() {
  OMP_NUM_THREADS=1 setarch --addr-no-randomize "$@" --gtest_brief=1
}

threads() {
  build tsan tests_core tests_torch
  watched build/tsan/bin/tests_core
  watched build/tsan/bin/tests_torch  # tests/CMakeLists.txt names its files
}

case ${1:-} in
  parsers | threads) "$1" ;;
  *) echo "sanitize: parsers or threads?" >&2; exit 2 ;;
esac
