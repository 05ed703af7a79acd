#!/usr/bin/env bash
# tools/check_neon.sh [FOLDER]: compiles the `neon` backend and its dispatch for AArch64 with the project's warnings as
# errors, and checks that every NEON file defines its entries. Compiled, not run. With a FOLDER, all of src/base,
# src/tensor and src/kernels, whose objects stay there: what an emulator needs (src/kernels/simd/NOTES.md).
# Needs Debian's g++-aarch64-linux-gnu; ccache makes a second run quick.
set -euo pipefail

cd "$(dirname "$0")/.."
compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" >/dev/null; then
  echo "check_neon: no $compiler (Debian package g++-aarch64-linux-gnu)" >&2
  exit 2
fi
out="${1:-}"
patterns=('src/kernels/*_neon.cpp' src/kernels/kernel_table.cpp src/kernels/ceiling/ceiling.cpp)
optimise=-O1
if [[ -n "$out" ]]; then
  patterns=('src/base/*.cpp' 'src/tensor/*.cpp' 'src/kernels/*.cpp')
  optimise=-O2
else
  out="$(mktemp -d)"
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
launcher=""
command -v ccache >/dev/null && launcher=ccache

compile() { # SOURCE: into $out
  local flags=(-std=c++20 "$optimise" -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror -ffp-contract=off)
  [[ "$1" != *_neon.cpp ]] || flags+=(-DTANDEM_VEC_NEON)
  $launcher "$compiler" "${flags[@]}" -Isrc -Iinclude -c "$1" -o "$out/$(tr / _ <<<"${1%.cpp}").o"
}
export -f compile
export compiler out launcher optimise

mapfile -t sources < <(git ls-files "${patterns[@]}" | grep -vE '_(avx2|avx512|amx)\.cpp$')
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -euc 'compile "$1"' _ {}

neon=0
for object in "$out"/*_neon.o; do
  symbols="$(aarch64-linux-gnu-nm -C --defined-only "$object")"
  if [[ "$symbols" != *' T tandem::neon::'* ]]; then
    echo "check_neon: $object defines no entry of tandem::neon" >&2
    exit 1
  fi
  neon=$((neon + 1))
done
echo "check_neon: ${#sources[@]} files compiled for AArch64, $neon of them the neon backend; compiled, not run"
