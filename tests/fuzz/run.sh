#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs libFuzzer's targets, which tests/fuzz/build.sh builds, and prints a table of them.
#   tests/fuzz/run.sh [TARGET ...]              every input of the corpus, once
#   tests/fuzz/run.sh --seconds N [TARGET ...]  new inputs, each target so long
#   tests/fuzz/run.sh --inputs N [TARGET ...]   so many inputs of each target
#   tests/fuzz/run.sh --keep [TARGET ...]       takes what was found and reaches new code into the corpus
# An input that a target refuses to survive lies in build/fuzz/found/TARGET, and its log beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${MOESAIC_FUZZ_BUILD:-build/fuzz}

# The longest input. It may hold 4 times that and 64 MiB.
MOST=65536
MOST_MB=$((64 + 4 * MOST / 1048576 + 1))

fail() { echo "fuzz: $*" >&2; exit 2; }

mode=corpus number=0
case ${1:-} in
  --seconds | --inputs)
    [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "$1 needs a number"
    mode=${1#--} number=$2
    shift 2 ;;
  --keep) mode=keep; shift ;;
  -*) fail "unknown option '$1'; options: --seconds N, --inputs N, --keep" ;;
esac
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for program in "$BUILD"/*_fuzz; do targets+=("$(basename "$program" _fuzz)"); done
fi
for target in "${targets[@]}"; do
  [ -x "$BUILD/${target}_fuzz" ] || fail "no $BUILD/${target}_fuzz; build it by tests/fuzz/build.sh"
done

# Where targets put files that have to have names.
scratch=$(mktemp -d -p /dev/shm moesaic-fuzz-XXXXXX)
trap 'rm -rf "$scratch"' EXIT

# The harness (harness.cpp) counts an input's processor time and the bytes that it holds. Limits of libFuzzer end what
# would not come back, ten seconds of the clock, and what asks for too much at once. A process has the program and all of
# the corpus in memory too, so that its limit is wider.
fuzz() { # TARGET OPTION..: what it says is in its log
  local target=$1 found=$BUILD/found/$1
  shift
  mkdir -p "$found/new"
  TMPDIR=$scratch "$BUILD/${target}_fuzz" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$found/" "$@" >"$found/log" 2>&1
}

told() { # TARGET WORD: the number behind it
  sed -n "s/^stat::$2: *//p" "$BUILD/found/$1/log" | tail -n 1
}

row() { # TARGET SECONDS
  printf '| %s | %s | %s | %s MiB |\n' "$1" "$(told "$1" number_of_executed_units)" "$2" "$(told "$1" peak_rss_mb)"
}

run() { # TARGET
  local corpus=tests/fuzz/corpus/$1 new=$BUILD/found/$1/new
  case $mode in
    corpus) fuzz "$1" -runs=0 "$corpus" ;;
    seconds) fuzz "$1" -max_len="$MOST" -malloc_limit_mb="$MOST_MB" -max_total_time="$number" "$new" "$corpus" ;;
    inputs) fuzz "$1" -max_len="$MOST" -malloc_limit_mb="$MOST_MB" -runs="$number" "$new" "$corpus" ;;
    keep) fuzz "$1" -set_cover_merge=1 "$corpus" "$new" ;;
  esac
}

failed=()
printf '| target | inputs | seconds | peak memory |\n|---|--:|--:|--:|\n'
for target in "${targets[@]}"; do
  began=$SECONDS
  if run "$target"; then
    row "$target" $((SECONDS - began))
  else
    failed+=("$target")
    printf '| %s | failed | %s | |\n' "$target" $((SECONDS - began))
    tail -n 40 "$BUILD/found/$target/log" >&2
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "fuzz: failed: ${failed[*]}; see $BUILD/found" >&2
  exit 1
fi
