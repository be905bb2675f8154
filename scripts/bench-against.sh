#!/usr/bin/env bash
# Measures figures of this checkout and of another commit alternately, both with this checkout's test/bench (docs/bench.md).
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
trap 'git worktree remove --force "$other"; rmdir "$(dirname "$other")"' EXIT

rm -rf "$other/test/bench"
cp -r test/bench "$other/test/bench"
make -C "$other" build
for checkout in . "$other"; do
  (cd "$checkout" && "${GO:-go}" build -o bin/bench ./test/bench)
done
bin/bench --against "$other" "$@"
