#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs libFuzzer's targets (tests/fuzz/CMakeLists.txt says how they are built).
#   tests/fuzz/run.sh                     every input of the corpus, once
#   tests/fuzz/run.sh SECONDS [TARGET..]  new inputs, each target so long; those worth keeping join the corpus
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${MOESAIC_FUZZ_BUILD:-build/fuzz}
seconds=${1:-0}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$file" _fuzz.cpp)"); done
fi
for target in "${targets[@]}"; do
  corpus=tests/fuzz/corpus/$target
  found=$BUILD/found/$target
  mkdir -p "$corpus" "$found"
  options=(-rss_limit_mb=1024 -timeout=10 -print_final_stats=0 -verbosity=0 -artifact_prefix="$found/")
  if [ "$seconds" = 0 ]; then
    "$BUILD/${target}_fuzz" "${options[@]}" -runs=0 "$corpus"
  else
    mkdir -p "$found/new"
    "$BUILD/${target}_fuzz" "${options[@]}" -max_len=65536 -max_total_time="$seconds" "$found/new" "$corpus"
    "$BUILD/${target}_fuzz" "${options[@]}" -merge=1 "$corpus" "$found/new"
  fi
  echo "$target: $(ls "$corpus" | wc -l) inputs"
done
