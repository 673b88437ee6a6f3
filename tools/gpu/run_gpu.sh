#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a bundle of tools/bundle.sh on a machine with a GPU; usage() says how.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
STAGES="machine doctor tests train bench peers sanitizers"
FILES="machine.txt tests.txt train.txt train.json bench.txt peers.txt sanitizers.txt summary.txt"

usage() {
  cat <<TEXT
usage: run_gpu.sh [OPTION ...] [STAGE ...]

Checks and measures moesaic on this machine's GPU. The script lies in a bundle, or beside a bundle's archive, which it
unpacks for as long as it runs. Each stage has a time limit and none stops the others; each gives one line of
summary.txt, which is printed, too. The exit code is 0 only if every stage passed.

stages, in this order; all of them unless some are named:
  machine     GPU, driver, processor, LibTorch
  doctor      every operator of the GPU against the CPU
  tests       each suite of tests_gpu in a process of its own
  train       30 steps in float32 and bfloat16 beside the CPU's in float32, and the speed of 300 steps
  bench       the rows gpu/* of moesaic bench operators and vmoe
  peers       the same layer by other means of Python's torch, and the speed of a product and a copy
  sanitizers  memcheck, racecheck and synccheck of compute-sanitizer, where it is installed

options:
  --seconds N   all stages end within N seconds, and 10 more for one that is stopped; default 340
  --limit N     no stage runs for more than N seconds
  --quick       few steps and small tensors, to try the stages
  --help

environment:
  OUT                 folder of the eight files, default gpu_results: $FILES
  MOESAIC_DEVICE      cuda or cpu, for train; by default cuda where there is a GPU
  MOESAIC_TORCH       folder of LibTorch 2.11; by default that of python3's torch
  MOESAIC_PYTHON      the Python to use in place of python3
  MOESAIC_SCATTERMOE  folder that holds the Python package scattermoe, for a row of peers
TEXT
}

fail() { # TEXT
  printf 'run_gpu.sh: %s\n' "$*" >&2
  exit 2
}

seconds=340 most=340 quick=
stages=
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --quick) quick=yes; shift ;;
    --seconds | --limit)
      [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || fail "$1 needs a number of seconds"
      if [ "$1" = --seconds ]; then seconds=$2; else most=$2; fi
      shift 2 ;;
    *)
      [[ " $STAGES " == *" $1 "* ]] || fail "unknown stage or option '$1'; stages are $STAGES"
      stages="$stages $1"; shift ;;
  esac
done
stages=${stages:-$STAGES}
python=${MOESAIC_PYTHON:-python3}
OUT=${OUT:-$PWD/gpu_results}
mkdir -p "$OUT" || fail "$OUT cannot be made"
OUT=$(cd "$OUT" && pwd)
work=$(mktemp -d) || fail "no temporary folder can be made"
reference=
finish() {
  if [ -n "$reference" ]; then kill "$reference" 2>/dev/null; fi
  rm -rf "$work"
}
trap finish EXIT
for file in $FILES; do : >"$OUT/$file" || fail "$OUT/$file cannot be written"; done

# --- What a stage is

left() { echo $((seconds - SECONDS)); }
wants() { [[ " $stages " == *" $1 "* ]]; }
passed=0 failed=0 not_run=0
reserve=0  # seconds that are kept for later stages

say() { # TEXT: a line of the summary, which is printed even if it cannot be written
  printf '%s\n' "$*"
  printf '%s\n' "$*" 2>/dev/null >>"$OUT/summary.txt"
}

report() { # NAME VERDICT SECONDS DETAIL
  case $2 in
    passed) passed=$((passed + 1)) ;;
    "not run") not_run=$((not_run + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
  say "$(printf '%-30s %-10s %3s s  %s' "$1" "$2" "$3" "$4")"
}

last_line() { grep -av '^[[:space:]]*$' | tail -n 1 | cut -c 1-200; }

# Copies its input into FILE. With a full disk the stage goes on and only its log ends; this then exits with 1.
log_to() { # FILE SECONDS
  timeout "$2" bash -c 'cat >>"$1" || { cat >/dev/null; exit 1; }' log "$1" 2>/dev/null
}

# Runs a command with a limit and reports it in one line, whose detail the function DESCRIBE makes of what it printed.
stage() { # NAME LIMIT FILE DESCRIBE COMMAND...
  local name=$1 limit=$2 file=$OUT/$3 describe=$4 began=$SECONDS codes took detail verdict=passed
  shift 4
  if [ "$most" -lt "$limit" ]; then limit=$most; fi
  if [ $(($(left) - reserve)) -lt "$limit" ]; then limit=$(($(left) - reserve)); fi
  if [ "$limit" -lt 1 ]; then report "$name" "not run" 0 "no time is left"; return; fi
  {
    { echo "== $name"; exec timeout -k 3 "$limit" "$@"; } 2>&1 </dev/null | tee "$work/log" | log_to "$file" $((limit + 10))
    codes=("${PIPESTATUS[@]}")
  } 2>/dev/null  # where the shell would say that a signal ended the stage
  took=$((SECONDS - began))
  detail=$(tail -n +2 "$work/log" | "$describe")
  if [ "${codes[0]}" -eq 124 ] || { [ "${codes[0]}" -eq 137 ] && [ "$took" -ge "$limit" ]; }; then
    verdict="time limit"
  elif [ "${codes[0]}" -gt 128 ]; then
    verdict=failed detail="ended by signal $((codes[0] - 128)) after: $detail"
  elif [ "${codes[0]}" -ne 0 ]; then
    verdict=failed detail=${detail:-exit code ${codes[0]}}
  fi
  if [ "${codes[2]}" -eq 1 ]; then
    if [ "$verdict" = passed ]; then verdict=failed; fi
    detail="$detail; no space for its log in $OUT"
  fi
  report "$name" "$verdict" "$took" "$detail"
}

# --- Stages

find_bundle() { # sets bundle
  local archive
  bundle=$here
  if [ -e "$bundle/moesaic" ]; then return; fi
  archive=$(find "$here" -maxdepth 1 -name 'moesaic-*.tar.xz' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
  [ -n "$archive" ] || fail "neither a bundle nor its archive, moesaic-*.tar.xz, is in $here"
  tar -C "$work" -xf "$archive" 2>/dev/null ||
    "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' "$archive" "$work" 2>/dev/null ||
    fail "$archive cannot be unpacked, by tar and xz or by $python"
  bundle=$(echo "$work"/moesaic-*)
}

find_device() { # sets device
  device=${MOESAIC_DEVICE:-}
  if [ -n "$device" ]; then return; fi
  device=cuda
  if timeout 20 nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidiactl ]; then return; fi
  device=cpu
  report gpu failed 0 "there is none: training is on the CPU, the GPU's tests are skipped, bench and sanitizers not run"
}

machine_facts() {
  nvidia-smi 2>&1
  nvidia-smi -q -d CLOCK,POWER,ECC 2>/dev/null | head -n 60
  uname -a
  nproc
  grep -m 1 'model name' /proc/cpuinfo
  sed -n 's/^PRETTY_NAME=//p' /etc/os-release
  ldd --version 2>&1 | head -n 1
  "$1" --version && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
  "$1" --version >/dev/null
}

checks() {
  local text
  text=$(cat)
  if grep -am 1 '✗' <<<"$text"; then return; fi
  if grep -aq '✓' <<<"$text"; then echo "$(grep -ac '✓' <<<"$text") checks"; else last_line <<<"$text"; fi
}

count_tests() {
  local text
  text=$(cat)
  grep -aq '^\[==========\] .* ran\.' <<<"$text" || { last_line <<<"$text"; return; }
  printf '%s passed, %s failed, %s skipped' "$(grep -ac '^\[       OK \]' <<<"$text")" \
    "$(grep -ac '^\[  FAILED  \] .*ms)$' <<<"$text")" "$(grep -ac '^\[  SKIPPED \] .*ms)$' <<<"$text")"
  grep -am 1 '^\[  FAILED  \] .*ms)$' <<<"$text" | sed 's/^\[  FAILED  \]/;/; s/ (.*//'
}

run_tests() {
  local suites suite until=$((SECONDS + 110)) limit
  timeout $((most < 30 ? most : 30)) "$tests" --gtest_list_tests >"$work/tests" 2>&1
  mapfile -t suites < <(sed -n 's/^\([^ ]*\.\)\( *#.*\)\{0,1\}$/\1/p' "$work/tests" | grep -v '^Cpu/')
  if [ ${#suites[@]} -eq 0 ]; then report tests failed 0 "tests_gpu lists no suite: $(last_line <"$work/tests")"; fi
  for suite in "${suites[@]}"; do
    limit=$((until - SECONDS < 45 ? until - SECONDS : 45))
    # The CPU's training has the other threads.
    stage "tests ${suite%.}" "$limit" tests.txt count_tests env OMP_NUM_THREADS=4 "$tests" --gtest_filter="$suite*" --gtest_color=no
  done
}

train() { # NAME DEVICE PRECISION STEPS IMAGES: a command in the array `training`
  training=("$moesaic" train "$bundle/share/moesaic/gpu/recipe.json" --device "$2" --out "$work/$1" "precision=$3"
    "phases.pretrain.steps=$4" "phases.pretrain.batch_size=$5")
}

# The CPU's run goes on beside the tests, which nobody times.
start_reference() {
  local threads
  if [ -n "$reference" ]; then return; fi
  threads=$(nproc)
  train cpu cpu float32 "$steps" "$images"
  OMP_NUM_THREADS=$((threads > 4 ? threads - 4 : threads)) "${training[@]}" >"$work/cpu.log" 2>&1 &
  reference=$!
}

await_reference() { # PROCESS LOG: a command of its own, so that it has a limit
  tail -n +1 -f -s 0.2 --pid "$1" "$2"
  grep -aq '^done' "$2"
}

pace() {
  local text
  text=$(cat)
  grep -a ' images in ' <<<"$text" | tail -n 1 | grep . || last_line <<<"$text"
}

run_training() {
  start_reference
  train float32 "$device" float32 "$steps" "$images"
  stage "train float32" 45 train.txt pace "${training[@]}"
  train bfloat16 "$device" bfloat16 "$steps" "$images"
  stage "train bfloat16" 45 train.txt pace "${training[@]}"
  stage "train on the CPU" 60 train.txt pace bash -c "$(declare -f await_reference); await_reference \"\$@\"" await "$reference" "$work/cpu.log"
  kill "$reference" 2>/dev/null
  wait "$reference" 2>/dev/null
  reference=
  train speed "$device" bfloat16 "$speed_steps" "$speed_images"
  stage "train speed" 30 train.txt pace "${training[@]}"
  stage "train compare" 20 train.txt last_line "$python" "$bundle/share/moesaic/gpu/compare.py" "$work" "$OUT/train.json"
}

rows_of() { # FILE PATTERN: its rows, below the stage's line
  local line
  while read -r line; do say "  $line"; done < <(grep -a "$2" "$OUT/$1" | cut -c 1-160)
}

run_bench() {
  reserve=0
  if wants peers; then reserve=$((seconds / 7)); fi
  if [ "$device" = cpu ]; then report bench "not run" 0 "there is no GPU"; return; fi
  stage "bench operators" 80 bench.txt bench_end "$moesaic" bench operators --rows 'gpu/*' --json
  stage "bench vmoe" 50 bench.txt bench_end "$moesaic" bench vmoe --rows 'gpu/*' --json
  rows_of bench.txt '^gpu/'
}

bench_end() {
  local text
  text=$(cat)
  if ! grep -aq '^gpu/' <<<"$text"; then last_line <<<"$text"; return; fi
  printf '%s rows, %s failed' "$(grep -ac '^gpu/' <<<"$text")" "$(grep -ac '^gpu/.* failed: ' <<<"$text")"
}

run_peers() {
  reserve=0
  stage peers 80 peers.txt last_line env TRITON_CACHE_DIR="$work/triton" TORCHINDUCTOR_CACHE_DIR="$work/inductor" \
    PYTHONPATH="${MOESAIC_SCATTERMOE:-}${PYTHONPATH:+:$PYTHONPATH}" "$python" -B "$bundle/share/moesaic/gpu/peers.py" ${quick:+--quick}
  rows_of peers.txt '^row '
}

sanitizer_end() {
  local text
  text=$(cat)
  grep -aE 'ERROR SUMMARY|RACECHECK SUMMARY' <<<"$text" | tail -n 1 | grep . || last_line <<<"$text"
}

run_sanitizers() {
  local tool name small='*RouteCuda*:*ExpertsCuda.*-*ManyRuns*:*Graph*'
  if [ "$device" = cpu ]; then report sanitizers "not run" 0 "there is no GPU"; return; fi
  tool=$(PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer command -v compute-sanitizer)
  if [ -z "$tool" ]; then report sanitizers "not run" 0 "compute-sanitizer is not installed"; return; fi
  # Without LibTorch's cache every tensor is an allocation of its own, whose end memcheck sees.
  # Races are looked for in this project's kernels alone.
  for name in "memcheck" "racecheck --kernel-regex kns=moesaic" "synccheck --kernel-regex kns=moesaic"; do
    stage "${name%% *}" 45 sanitizers.txt sanitizer_end env PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
      MOESAIC_UNDER="$tool --error-exitcode 1 --print-limit 20 --tool $name" "$tests" --gtest_filter="$small" --gtest_brief=1
  done
}

find_bundle
moesaic=$bundle/moesaic tests=$bundle/tests_gpu
# Threads of OpenMP that spin for long would take the processors from each other.
export NO_COLOR=1 TERM=dumb GOMP_SPINCOUNT=20000
steps=30 images=32 speed_steps=300 speed_images=128
if [ -n "$quick" ]; then steps=3 images=8 speed_steps=3 speed_images=8; fi
say "moesaic $(cat "$bundle/COMMIT" 2>/dev/null), $(date -u +%Y-%m-%dT%H:%M:%SZ)"
find_device
if wants bench && [ "$device" != cpu ]; then reserve=$((seconds / 4)); fi
if wants peers; then reserve=$((reserve + seconds / 7)); fi
if wants machine; then
  stage machine 20 machine.txt last_line bash -c "$(declare -f machine_facts); machine_facts \"\$1\"" machine "$moesaic"
fi
if wants doctor; then stage doctor 60 machine.txt checks "$moesaic" doctor --all; fi
if wants tests; then
  if wants train; then start_reference; fi
  run_tests
fi
if wants train; then run_training; fi
if wants bench; then run_bench; fi
if wants peers; then run_peers; fi
if wants sanitizers; then run_sanitizers; fi
say "$passed passed, $failed failed, $not_run not run; $SECONDS s; files in $OUT"
if [ $((failed + not_run)) -gt 0 ]; then exit 1; fi
