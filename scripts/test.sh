#!/usr/bin/env bash
# Runs the tests of a tier: short or complete. Builds everything first, then runs all steps, also after a failed one, and prints a report at the end.
# The events of each step are in bin/test as JSON. Arguments after the tier are names of steps to run; by default all.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  short) tier=(-short) real_race=plain real_flags=() ;;
  complete) tier=() real_race=race real_flags=(-race) ;; # real parts take twice as long with the race detector
  *) echo "usage: scripts/test.sh short|complete [STEP…]" >&2; exit 2 ;;
esac
shift
steps=(unit real tools datapath oracle lab)
for name in "$@"; do
  [[ " ${steps[*]} " == *" $name "* ]] || { echo "test.sh: unknown step \"$name\"; steps: ${steps[*]}" >&2; exit 2; }
done
chosen=" $* "

# Two configurations, so that dependencies are compiled twice: the Makefile's, and the race detector's. Tests that build programs set CGO_ENABLED=0.
export GOFLAGS='-buildvcs=false -trimpath'
plain() { CGO_ENABLED=0 "$@"; }
race() { CGO_ENABLED=1 "$@"; } # with -race

out=bin/test
rm -rf "$out"
mkdir -p "$out"
# Tests note here that a packet arrived where it must not. No rerun makes up for that.
export OVSDN_TEST_FATAL=$PWD/$out/fatal
failed=()

# step NAME COMMAND…
step() {
  local name=$1 began=$SECONDS
  shift
  [[ $chosen == "  " || $chosen == *" $name "* ]] || return 0
  echo "test: $name"
  "$@" || failed+=("$name")
  echo "$name $((SECONDS - began))" >>"$out/steps"
}

# sum NAME FORMAT FLAGS…: go test, by gotestsum.
sum() {
  local name=$1 format=$2
  shift 2
  "$out/gotestsum" --format="$format" --hide-summary=skipped --jsonfile="$out/$name.json" "$@"
}

# units NAME FLAGS… PACKAGES…: `make lint` runs vet.
units() {
  local name=$1
  shift
  sum "$name" standard-quiet -- -vet=off -timeout=60m "${tier[@]}" "$@"
}

# labs NAME FLAGS… PACKAGES…: once more, if no more than two tests and their subtests failed and none of them had a data race.
labs() {
  local name=$1
  shift
  sum "$name" standard-verbose --rerun-fails=1 --rerun-fails-max-failures=6 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
    --packages="./test/e2e ./test/attacks" -- -vet=off -timeout=80m -p=1 -count=1 "${tier[@]}" "$@"
}

# Packages whose tests use real parts (Open vSwitch, an API server, network namespaces) run one after the other, the others side by side.
imports='{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}{{range .TestImports}}{{$p}} {{.}}{{"\n"}}{{end}}{{range .XTestImports}}{{$p}} {{.}}{{"\n"}}{{end}}'
# test/vm is for `make test-kernel`.
packages=$(plain go list ./... | grep -v /test/vm)
real=$(plain go list -f "$imports" $packages | awk '$2 ~ "ovsdn/test/(ovstest|apitest|lab|vm|bareagent|datapath)(/|$)|/plugins/pkg/ns$" {print $1}' | sort -u)
pure=$(grep -vxF "$real" <<<"$packages")
# No product code runs concurrently in the tests that are left out here.
raced='ovsdn/(cmd|images|pkg)/|/test/(await|cni)$'
# Tests that ask millions of questions one after the other: the race detector would find nothing.
oracle='TestSwitchAgrees|Agrees?WithTheOracle'

# prepare builds the programs of labs and compiles all tests: no test runs beside a compiler.
prepare() {
  make --no-print-directory build
  bin/ovsdn-lab prepare
  plain go build -modfile=scripts/tools/go.mod -o "$out/gotestsum" gotest.tools/gotestsum
  plain go list -test -deps -export ./... >/dev/null
  race go list -race -test -deps -export $(grep -E "$raced" <<<"$pure") >/dev/null
  "$real_race" go list "${real_flags[@]}" -test -deps -export $(grep -E "$raced" <<<"$real") >/dev/null
}

prepare_began=$SECONDS
prepare
echo "prepare $((SECONDS - prepare_began))" >>"$out/steps"
step unit race units unit -race -p=2 -skip="$oracle" $(grep -E "$raced" <<<"$pure")
step real "$real_race" units real "${real_flags[@]}" -p=1 -count=1 -skip="$oracle" $(grep -E "$raced" <<<"$real")
step tools plain units tools -p=2 $(grep -vE "$raced" <<<"$pure")
step datapath plain units datapath -p=1 -count=1 $(grep -vE -e "$raced" -e '/test/(e2e|attacks)$' <<<"$real")
step oracle plain units oracle -p=1 -count=1 -run="$oracle" ./pkg/sdn/policy ./pkg/sdn/node/networkpolicy
step lab plain labs lab

plain go run ./test/report "$out" || failed+=(report)
[ ${#failed[@]} -eq 0 ] || { echo "test: failed: ${failed[*]}" >&2; exit 1; }
