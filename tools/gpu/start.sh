#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts the program of this bundle that has this script's name, with the machine's own LibTorch 2.11 (CUDA).
#   MOESAIC_TORCH    folder of that LibTorch, the one that holds lib/; without it the folder of python3's torch
#   MOESAIC_PYTHON   the Python to ask in place of python3
#   MOESAIC_UNDER    a command that runs the program: a profiler, or "compute-sanitizer --tool memcheck"
set -euo pipefail
name=$(basename "$0")
bundle=$(dirname "$(readlink -f "$0")")
program=$bundle/bin/$name

fail() { # TEXT
  printf '%s: %s\n' "$name" "$*" >&2
  exit 1
}

# Sets `torch`: the folder that holds lib/libtorch_cpu.so.
find_torch() {
  local python=${MOESAIC_PYTHON:-python3}
  local ask='import importlib.util as u; spec = u.find_spec("torch"); print(spec.submodule_search_locations[0] if spec else "")'
  torch=${MOESAIC_TORCH:-}
  if [ -n "$torch" ]; then
    [ -d "$torch/lib" ] || fail "MOESAIC_TORCH=$torch: no folder with LibTorch's lib/"
    return
  fi
  command -v "$python" >/dev/null || fail "there is no $python to ask for torch; set MOESAIC_TORCH to LibTorch's folder"
  torch=$(cd / && "$python" -c "$ask" 2>/dev/null) || fail "$python cannot be asked for torch; set MOESAIC_TORCH to LibTorch's folder"
  [ -n "$torch" ] || fail "$python has no torch; install torch 2.11 or set MOESAIC_TORCH to LibTorch's folder"
}

check_torch() {
  local version
  version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$torch/share/cmake/Torch/TorchConfigVersion.cmake" 2>/dev/null || true)
  case $version in
    2.11.*) ;;
    *) fail "needs LibTorch 2.11, $torch is LibTorch ${version:-of an unknown version}" ;;
  esac
  [ -e "$torch/lib/libtorch_cuda.so" ] || fail "needs LibTorch 2.11 with CUDA, $torch is without"
}

# The newest version of a library that the program needs and the machine's does not have, e.g. GLIBC_2.34; none is nothing.
missing_version() {
  ldd "$program" 2>&1 | sed -n "s/.*version \`\([A-Z]*_[0-9.]*\)' not found.*/\1/p" | sort -uV | tail -n 1 || true
}

# LibTorch's wheel keeps CUDA's libraries in folders beside it. Of the bundle's own libraries only the C++ library of the
# build is added, where the machine's is older: the others are found from within bin/ and lib/.
library_path() {
  local folder path=$torch/lib
  for folder in "$torch"/../nvidia/*/lib /usr/local/cuda/lib64; do
    if [ -d "$folder" ]; then path=$path:$folder; fi
  done
  export LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  if [ -z "$(missing_version)" ]; then return; fi
  LD_LIBRARY_PATH=$bundle/lib/c++:$LD_LIBRARY_PATH
  if [ -n "$(missing_version)" ]; then
    fail "needs $(missing_version), this machine has $(ldd --version | sed -n '1s/.* /GLIBC_/p')"
  fi
}

[ -x "$program" ] || fail "$program is not there"
find_torch
check_torch
library_path
# shellcheck disable=SC2086  # a command and its arguments
exec ${MOESAIC_UNDER:-} "$program" "$@"
