#!/usr/bin/env bash
# Benchmarks this checkout and another commit alternately, both with this checkout's test/bench if it compiles there (docs/bench.md).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# = 0 ]; then
  echo "usage: $0 COMMIT [BENCH-ARGUMENT...]" >&2
  exit 2
fi
commit=$1
shift

other=$(mktemp -d)/$(git rev-parse --short "$commit")
git worktree add --quiet --detach "$other" "$commit"
trap 'git worktree remove --force "$other"; rm -r "$(dirname "$other")"' EXIT

make -C "$other" build
go=${GO:-go}
"$go" build -o bin/bench ./test/bench
mv "$other/test/bench" "$other/../its-own"
cp -r test/bench "$other/test/bench"
if ! (cd "$other" && "$go" build -o bin/bench ./test/bench); then
  echo "$0: this checkout's test/bench does not compile with $commit: using its own" >&2
  rm -r "$other/test/bench"
  mv "$other/../its-own" "$other/test/bench"
  (cd "$other" && "$go" build -o bin/bench ./test/bench)
fi
bin/bench --against "$other" "$@"
