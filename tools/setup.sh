#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build needs and the machine lacks, and Debian packages named as arguments. Repeatable, quick when
# nothing is missing, asks nothing.
#   MOESAIC_PRESET        cuda: nvcc is needed even where there is no GPU
#   MOESAIC_VENV          where the Python environment with the LibTorch wheel goes (default: the user's cache folder)
#   Torch_DIR, CMAKE_PREFIX_PATH   an existing LibTorch, used instead of the wheel
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/env.sh

REQUIREMENTS=tools/python/requirements.txt  # exact versions and hashes of LibTorch's wheel, what `moesaic export` to ONNX needs, and all that these need
NVCC_REQUIREMENTS=tools/python/requirements-nvcc.txt
PACKAGES=(build-essential cmake ninja-build ccache git python3 python3-venv
  libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev
  zlib1g-dev libarchive-dev libjpeg-dev libturbojpeg0-dev libpng-dev libwebp-dev libmpack-dev libre2-dev libssl-dev libcurl4-openssl-dev libgloo-dev gnuplot-nox dataset-fashion-mnist "$@")

say() { printf 'setup: %s\n' "$*" >&2; }

missing_packages() {
  local package
  for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || echo "$package"
  done
}

# apt's and dpkg's notes are of interest where they end in an error.
quietly() { # COMMAND..
  local log failed=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || failed=$?
  if [ "$failed" -ne 0 ]; then cat "$log" >&2; fi
  rm -f "$log"
  return "$failed"
}

install_packages() {
  local missing as_root=()
  command -v dpkg-query >/dev/null || { say "no dpkg here: install by hand what this script lists in PACKAGES"; return; }
  mapfile -t missing < <(missing_packages)
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      say "these packages are missing, and this user may not install them:"
      say "  apt-get install ${missing[*]}"
      exit 1
    fi
  fi
  say "installing ${missing[*]}"
  quietly "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive quietly "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

venv_python() { echo "$MOESAIC_VENV/bin/python"; }

pip_install() { # FILE: installs what the file pins, and nothing whose hash it does not give.
  "$(venv_python)" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$1"
}

pinned() { # PACKAGE: its version in requirements.txt
  sed -n "s/^$1==\([^ ]*\).*/\1/p" "$REQUIREMENTS"
}

install_torch() {
  local complete
  if moesaic_given_torch && ! [[ "${CMAKE_PREFIX_PATH:-}${Torch_DIR:-}" == *"$MOESAIC_VENV"* ]]; then
    say "using the LibTorch given by Torch_DIR or CMAKE_PREFIX_PATH"
    return
  fi
  # Another list of versions is another environment to complete.
  complete=$MOESAIC_VENV/.complete-$(sha256sum "$REQUIREMENTS" | cut -c 1-16)
  if [ -f "$complete" ]; then return; fi
  if [ "$(uname -sm)" != "Linux x86_64" ]; then
    say "the pinned LibTorch wheel is for Linux on x86_64; on this machine name a LibTorch by Torch_DIR"
    exit 1
  fi
  say "installing LibTorch $(pinned torch) into $MOESAIC_VENV (about 5 GB, a minute or two)"
  mkdir -p "$(dirname "$MOESAIC_VENV")"
  python3 -m venv "$MOESAIC_VENV"
  pip_install "$REQUIREMENTS"
  rm -f "$MOESAIC_VENV"/.complete-*
  touch "$complete"
}

# A machine that has a GPU, or shall build for one, and no nvcc gets the compiler of the CUDA version that LibTorch was
# built with.
install_cuda_compiler() {
  if [ "${MOESAIC_PRESET:-}" != cuda ] && ! nvidia-smi -L >/dev/null 2>&1; then return; fi
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || [ -n "$(moesaic_nvcc)" ]; then return; fi
  if ! "$(venv_python)" -c "import torch; assert torch.__version__.startswith('$(pinned torch)')" 2>/dev/null; then
    say "a build for a GPU needs nvcc; with a LibTorch of your own, install the CUDA toolkit that it was built with"
    return
  fi
  say "installing the CUDA compiler into $MOESAIC_VENV"
  pip_install "$NVCC_REQUIREMENTS"
  link_cuda_libraries "$(dirname "$(dirname "$(moesaic_nvcc)")")"
}

# The wheels carry libNAME.so.MAJOR only, in lib/; CMake looks for libNAME.so in lib64/.
link_cuda_libraries() { # TOOLKIT
  local library name
  for library in "$1"/lib/lib*.so.*; do
    name=${library%%.so.*}.so
    if [ ! -e "$name" ]; then ln -s "$(basename "$library")" "$name"; fi
  done
  if [ ! -e "$1/lib64" ]; then ln -s lib "$1/lib64"; fi
}

install_packages
install_torch
install_cuda_compiler
