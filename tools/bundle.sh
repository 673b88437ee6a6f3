#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what runs on another machine that has LibTorch 2.11 and nothing else of moesaic (docs/bundle.md):
#   tools/bundle.sh [--build DIR] OUT
# OUT gets moesaic-VERSION-linux-x86_64.tar.xz and run_gpu.sh. The preset cuda is built first, unless --build names a build
# of it, with the targets moesaic_program and tests_gpu.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
IMAGES=/usr/share/datasets/fashion-mnist  # Debian's package dataset-fashion-mnist

fail() { # TEXT
  printf 'bundle: %s\n' "$*" >&2
  exit 1
}

# Copies the terms of the Debian package that a file is of, where it is of one.
copy_terms() { # FILE
  local package file
  file=$(readlink -f "$1")  # Some packages list /lib for what lies in /usr/lib.
  package=$({ dpkg -S "$file" || dpkg -S "${file#/usr}"; } 2>/dev/null | head -n 1 | cut -d : -f 1) || true
  if [ -e "/usr/share/doc/$package/copyright" ]; then
    install -D -m 644 "/usr/share/doc/$package/copyright" "$bundle/share/doc/$package/copyright"
  fi
}

build=
if [ "${1:-}" = --build ] && [ $# -ge 2 ]; then
  build=$(cd "$caller" && realpath "$2")
  shift 2
fi
if [ $# -ne 1 ] || [[ $1 == -* ]]; then fail "usage: tools/bundle.sh [--build DIR] OUT"; fi
out=$(cd "$caller" && mkdir -p "$1" && cd "$1" && pwd)
if [ -z "$build" ]; then
  MOESAIC_PRESET=cuda tools/setup.sh patchelf xz-utils
  MOESAIC_PRESET=cuda tools/build.sh moesaic_program tests_gpu
  build=build/cuda
fi
for tool in patchelf xz strip readelf; do command -v $tool >/dev/null || fail "needs $tool"; done
for file in moesaic tests_gpu; do [ -x "$build/bin/$file" ] || fail "$build/bin/$file is not there"; done
[ -e "$IMAGES/t10k-images-idx3-ubyte.gz" ] || fail "Fashion-MNIST is not in $IMAGES"

name=moesaic-$(cat VERSION)-linux-x86_64
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
bundle=$stage/$name
library=$bundle/lib
for component in runtime bundle; do
  cmake --install "$build" --prefix "$bundle" --component $component --strip >/dev/null
done
# A distribution's own name for lib/, e.g. lib/x86_64-linux-gnu where the prefix is /usr.
[ -d "$library" ] || fail "the build does not install its library into lib/"

# Of what the loader finds: the distribution's libraries, but not glibc's, LibTorch's and CUDA's, which are the machine's.
# The C++ library of this compiler is kept aside for a machine whose own is older.
torch=$(ldd "$bundle/bin/moesaic" | sed -n 's|.*=> \(.*\)/lib/libtorch_cpu\.so .*|\1|p')
[ -n "$torch" ] || fail "$build/bin/moesaic does not find LibTorch"
torch=$(realpath -s "$torch")
mkdir "$library/c++"
ldd "$bundle/bin/moesaic" "$bundle/bin/tests_gpu" | sed -n 's|.*=> \(/[^ ]*\) .*|\1|p' | sort -u | while read -r file; do
  case $(realpath -s "$file") in "$bundle"/* | "$torch"/* | "$(dirname "$torch")"/nvidia/*) continue ;; esac
  case ${file##*/} in
    ld-linux* | lib[cm].so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | libutil.so.* | libanl.so.*) ;;
    libcuda.so.* | libcudart.so.* | libnvidia-*) ;;
    libstdc++.so.* | libgcc_s.so.*) cp -L "$file" "$library/c++/" ;;
    *) strip --strip-unneeded -o "$library/${file##*/}" "$(readlink -f "$file")" ;;
  esac
  copy_terms "$file"
done

# Each finds its neighbours by itself and nothing of this machine.
# shellcheck disable=SC2016  # the loader reads $ORIGIN
origin='$ORIGIN'
patchelf --set-rpath "$origin/../lib" "$bundle"/bin/*
for file in "$library"/*.so*; do [ -L "$file" ] || patchelf --set-rpath "$origin" "$file"; done
if readelf -d "$bundle"/bin/* "$library"/*.so* | grep -E 'R(UN)?PATH' | grep -vF -e "[$origin]" -e "[$origin/../lib]"; then
  fail "these search paths are not the bundle's own"
fi

share=$bundle/share/moesaic
rm -rf "$share"/models/*/figures
mkdir "$share/gpu" "$share/datasets/clothes"
cp tools/gpu/*.py tools/gpu/recipe.json "$share/gpu/"
cp tools/gpu/clothes.json "$share/datasets/"
cp "$IMAGES"/t10k-*.gz "$share/datasets/clothes/"
install -m 755 tools/gpu/run_gpu.sh "$bundle/run_gpu.sh"
install -m 755 tools/gpu/start.sh "$bundle/moesaic"
ln -s moesaic "$bundle/tests_gpu"
cp LICENSE "$bundle/"
copy_terms "$IMAGES/t10k-images-idx3-ubyte.gz"
git describe --always --dirty >"$bundle/COMMIT" 2>/dev/null || echo unknown >"$bundle/COMMIT"

archive=$out/$name.tar.xz
trap 'rm -rf "$stage" "$archive.part"' EXIT
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -T0 -9 >"$archive.part"
mv "$archive.part" "$archive"
install -m 755 tools/gpu/run_gpu.sh "$out/run_gpu.sh"
printf 'bundle: %s, %.1f MB, %d libraries beside its own\n' "$archive" \
  "$(($(stat -c %s "$archive") / 100000))e-1" "$(find "$library" -maxdepth 1 -name '*.so*' ! -name 'libmoesaic*' | wc -l)"
