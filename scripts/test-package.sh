#!/usr/bin/env bash
# Runs the test program of a package once, and prints its events as `go test -json` does when it has ended: others may run beside it.
# usage: test-package.sh DIRECTORY PACKAGE FLAG…; scripts/test.sh has put test2json and the programs into the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=$1 package=$2
shift 2
program=$directory/${package//\//+}
begun=$directory/begun/${package//\//+}
if ! mkdir "$begun" 2>/dev/null; then
  [ -d "$begun" ] && exit 0 # it runs in another lane, or did
  echo "test-package.sh: can't create $begun" >&2
  exit 1
fi
interrupted=
trap 'interrupted=yes' INT # after the program has taken its labs down
code=0
# test2json ignores SIGINT, and its children would inherit that.
(cd "./${package#github.com/ovsdn/ovsdn/}" &&
  exec "$directory/test2json" -t -p "$package" env --default-signal=INT "$program" -test.v=test2json -test.paniconexit0 "$@") >"$program.json" || code=1
flock "$directory" cat "$program.json"
[ -z "$interrupted" ] || exit 130
exit "$code"
