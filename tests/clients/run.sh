#!/usr/bin/env bash
# Runs the client libraries' tests against a built `tandem`: run.sh <tandem> <model>. 77, and the reason, when they cannot run.
set -euo pipefail
export TANDEM_BINARY="$1" TANDEM_MODEL="$2"
cd "$(dirname "${BASH_SOURCE[0]}")"

skip() {
  printf '%s\n[  SKIPPED ] clients.openai (0 ms)\n' "$1"
  exit 77
}

command -v node >/dev/null || skip "no node: the OpenAI client library was not tried (needs node 18 or newer)"
major="$(node --version | sed -n 's/^v\([0-9]*\).*/\1/p')"
[[ "$major" -ge 18 ]] || skip "node $major is older than 18: the OpenAI client library was not tried"
if [[ ! -e node_modules/openai/package.json ]]; then
  command -v npm >/dev/null || skip "no npm to install the OpenAI client library with"
  npm ci --no-audit --no-fund --loglevel=error || skip "npm could not install the OpenAI client library"
fi
exec node --test .
