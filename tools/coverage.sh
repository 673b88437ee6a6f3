#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints which part of the lines of formats, config, checkpoint and import/vmoe/files their tests run, and fails where it
# is less than 95 % of one of them: tools/coverage.sh [--missed] [--least PERCENT]. What runs in a process that a test
# kills, or in moesaic itself, does not count.
set -euo pipefail
cd "$(dirname "$0")/.."

# tests_core has those of formats, config and import/vmoe/files; these of tests_torch write, read and damage checkpoints.
of_checkpoints=(tests/checkpoint tests/export tests/import tests/prune/prune_checkpoint_test.cpp tests/train/faults_test.cpp
  tests/train/distributed_run_test.cpp tests/train/resume_test.cpp tests/train/save_run_test.cpp)

# FILE..: a filter of GoogleTest for all their suites, with parameters and types or without
suites_of() {
  grep -rhoE '^(TYPED_)?TEST(_F|_P)?\(\w+' "$@" | sed 's/.*(//' | sort -u |
    sed 's|.*|&.*:&/*:*/&.*:*/&/*|' | paste -s -d :
}

# The last build that somebody made stays the one that other scripts take.
built=
if [ -e build/preset ]; then built=$(cat build/preset); fi
MOESAIC_PRESET=coverage tools/build.sh tests_core tests_torch
if [ -n "$built" ]; then echo "$built" >build/preset; else rm -f build/preset; fi

find build/coverage -name '*.gcda' -delete
build/coverage/bin/tests_core --gtest_brief=1
build/coverage/bin/tests_torch --gtest_brief=1 --gtest_filter="$(suites_of "${of_checkpoints[@]}")"
exec python3 tools/coverage.py --build build/coverage "$@" formats config checkpoint import/vmoe/files
