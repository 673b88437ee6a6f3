#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every test: tools/test.sh [GTEST FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh
python3 tools/check_layers.py
tools/build.sh
source tools/env.sh
python3 tools/run_tests.py --build "build/$(moesaic_built_preset)" --filter "${1:-*}"
