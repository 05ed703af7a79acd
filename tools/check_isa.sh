#!/usr/bin/env bash
# tools/check_isa.sh BUILD_DIR: proves that no code compiled for AVX2, AVX-512 or AMX can run on a CPU without it.
#
# An inline function or template instantiated in a wide file is a weak symbol; the linker keeps one copy of each for the
# whole program, and if that is the wide one, portable code crashes an older CPU. So the objects of *_avx2.cpp and
# *_avx512.cpp and *_amx.cpp may define only local symbols and strong entries of tandem::<set>, and run nothing at
# start-up. It also checks the other side: no other object contains a wide register.
# Needs nm and objdump; build in Release (an unoptimised build inlines nothing). Exits 1 with every offender listed.
set -euo pipefail

if [ $# -ne 1 ] || [ ! -d "$1" ]; then
  echo "usage: tools/check_isa.sh BUILD_DIR" >&2
  exit 2
fi

objects=$(find "$1" -path '*tandem_kernels.dir*' -name '*.cpp.o' | sort)
wide=0
narrow=0
failures=0
fail() {
  echo "check_isa: $1" >&2
  failures=$((failures + 1))
}

while IFS= read -r object; do
  case "$object" in
    *_avx2.cpp.o | *_avx512.cpp.o | *_amx.cpp.o)
      wide=$((wide + 1))
      case "$object" in *_avx2.cpp.o) set=avx2 ;; *_amx.cpp.o) set=amx ;; *) set=avx512 ;; esac
      # W, V, u: weak function, weak object, unique. Undefined weak references (w, v) define nothing.
      # DW.ref.__gxx_personality_v0 is a pointer for the unwinder, not code.
      leaked=$(nm -C --defined-only "$object" | awk '$2 ~ /^[WVu]$/ && $3 != "DW.ref.__gxx_personality_v0"')
      [ -z "$leaked" ] || fail "$object defines weak symbols:"$'\n'"$leaked"
      foreign=$(nm -C --defined-only "$object" | awk -v entry="tandem::$set::" '$2 ~ /^[TDBRG]$/ && index($0, entry) == 0')
      [ -z "$foreign" ] || fail "$object defines symbols outside tandem::$set:"$'\n'"$foreign"
      if objdump -h "$object" | grep -q '\.init_array'; then fail "$object runs code at start-up"; fi
      ;;
    *)
      narrow=$((narrow + 1))
      if objdump -d --no-show-raw-insn "$object" | grep -qE '%[yz]mm[0-9]'; then
        fail "$object is portable and uses wide registers"
      fi
      ;;
  esac
done <<<"$objects"

if [ "$wide" -eq 0 ]; then fail "no *_avx2.cpp.o or *_avx512.cpp.o below $1: was tandem_kernels built?"; fi
[ "$failures" -eq 0 ] || exit 1
echo "check_isa: $wide wide objects leak nothing, $narrow portable objects use no wide register"
