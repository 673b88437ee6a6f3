# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: says where LibTorch is. An existing one given by Torch_DIR or CMAKE_PREFIX_PATH wins
# over the wheel that tools/setup.sh installs.
MOESAIC_VENV=${MOESAIC_VENV:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/moesaic/venv}
export MOESAIC_VENV

moesaic_has_torch() { # PREFIX...: does one of these hold TorchConfig.cmake?
  local prefix
  for prefix in "$@"; do
    if [ -f "$prefix/TorchConfig.cmake" ] || [ -f "$prefix/share/cmake/Torch/TorchConfig.cmake" ] ||
       [ -f "$prefix/Torch/TorchConfig.cmake" ]; then
      return 0
    fi
  done
  return 1
}

moesaic_given_torch() {
  local IFS=':;'
  # shellcheck disable=SC2086  # the list is split on purpose
  moesaic_has_torch ${Torch_DIR:-} ${CMAKE_PREFIX_PATH:-}
}

if ! moesaic_given_torch; then
  for moesaic_cmake in "$MOESAIC_VENV"/lib/python3*/site-packages/torch/share/cmake; do
    if [ -d "$moesaic_cmake" ]; then
      export CMAKE_PREFIX_PATH="$moesaic_cmake${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
    fi
  done
fi

# The CUDA compiler that tools/setup.sh installs where a build for a GPU finds no toolkit.
moesaic_nvcc() { find "$MOESAIC_VENV" -path '*/bin/nvcc' -perm -u+x 2>/dev/null | head -n 1; }
if ! command -v nvcc >/dev/null && [ -n "$(moesaic_nvcc)" ]; then
  CUDACXX=$(moesaic_nvcc)
  CUDAToolkit_ROOT=$(dirname "$(dirname "$CUDACXX")")
  CUDA_PATH=$CUDAToolkit_ROOT  # where LibTorch's own CMake files look
  export CUDACXX CUDAToolkit_ROOT CUDA_PATH
fi

# Makes a Python environment of the wheels that a file pins, unless there is one.
moesaic_install() { # VENV REQUIREMENTS
  local complete
  complete=$1/.complete-$(sha256sum "$2" | cut -c 1-16)
  if [ -f "$complete" ]; then return; fi
  mkdir -p "$(dirname "$1")"
  python3 -m venv "$1" || return 1
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$2" || return 1
  rm -f "$1"/.complete-*
  touch "$complete"
}

# The packages that tests compare with (timm, transformers) or read (pandas, pyarrow).
moesaic_install_peers() {
  moesaic_peers=$(dirname "$MOESAIC_VENV")/peers-venv
  moesaic_install "$moesaic_peers" tools/python/requirements-peers.txt
}

# The preset to build: what MOESAIC_PRESET says, else `cuda` where there are a GPU and nvcc, else `release`.
moesaic_wanted_preset() {
  if [ -n "${MOESAIC_PRESET:-}" ]; then
    echo "$MOESAIC_PRESET"
  elif nvidia-smi -L >/dev/null 2>&1 && { command -v nvcc >/dev/null || [ -x "${CUDACXX:-/usr/local/cuda/bin/nvcc}" ]; }; then
    echo cuda
  else
    echo release
  fi
}

# The preset that tools/build.sh built last in this folder.
moesaic_built_preset() { cat build/preset 2>/dev/null || moesaic_wanted_preset; }
