#!/usr/bin/env bash
# Runs the tests of a tier: short or complete. Builds everything first, then runs all steps, also after a failed one, and prints a report at the end.
# The events of each step are in bin/test as JSON. Arguments after the tier are names of steps to run; by default all.
set -euo pipefail
cd "$(dirname "$0")/.."
# A shell without job control starts programs in the background with SIGINT ignored, which bash can't change.
[ -n "${OVSDN_TEST_SIGNALS:-}" ] || OVSDN_TEST_SIGNALS=default exec env --default-signal=INT,TERM,HUP scripts/test.sh "$@"

case ${1:-} in
  # Tests of tier.Parallel mostly wait, so that two cores run four of a package at once. So do two packages in lanes of their own.
  short) tier=(-short) limit=15m other=plain other_flags=() real_flags=(-test.parallel=4) lab_flags=(-parallel=4) lanes=2 ;;
  # What takes too long with the race detector for the short tier.
  complete) tier=() limit=60m other=race other_flags=(-race) real_flags=() lab_flags=() lanes=1 ;;
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
mkdir -p bin
# The lock ends with this script: no step inherits it.
exec {lock}>bin/.test.lock
if ! flock --nonblock "$lock"; then
  echo "test: waiting for the end of another run in this checkout" >&2
  until flock --nonblock "$lock"; do sleep 1; done
fi
rm -rf "$out"
mkdir -p "$out"
# Tests note here what no rerun makes up for, such as a packet that arrived where it must not.
export OVSDN_TEST_FATAL=$PWD/$out/fatal
# Tests use the program of the step prepare instead of linking one each.
export OVSDN_TEST_PORTMAP=$PWD/bin/portmap
failed=()

# interrupt ends the step that runs. SIGTERM would end the go command before its tests, which then die of SIGPIPE instead of taking their labs down.
group= interrupted=
interrupt() {
  interrupted=yes
  [ -z "$group" ] || kill -INT -- "-$group" 2>/dev/null || true
}
trap interrupt INT TERM HUP

# run COMMAND…: in a process group of its own. Sets code. If this script is interrupted, it waits for the whole group, whose tests take their labs down.
run() {
  [ -z "$interrupted" ] || exit 130
  set -m
  (trap 'exit 130' INT; "$@") </dev/null {lock}>&- &
  group=$!
  set +m
  [ -z "$interrupted" ] || interrupt
  code=0
  wait "$group" || code=$?
  [ -n "$interrupted" ] || return 0
  echo "test: interrupted: waiting for the processes of this step" >&2 || true # a terminal that was closed
  local deadline=$((SECONDS + 300))
  while kill -0 -- "-$group" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.2 || true; done
  kill -KILL -- "-$group" 2>/dev/null || true
  exit 130
}

# step NAME COMMAND…
step() {
  local name=$1 began=$SECONDS
  shift
  [[ $chosen == "  " || $chosen == *" $name "* ]] || return 0
  echo "test: $name"
  run "$@"
  [ "$code" -eq 0 ] || failed+=("$name")
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
  sum "$name" standard-quiet -- -vet=off -timeout="$limit" "${tier[@]}" "$@"
}

# link FLAGS… PACKAGES…: links the test programs of packages, two at once, into bin/test-programs, with symbolic links to them in $out/programs. They remain: the next run
# links only those that have changed. One go command refuses packages with the same last element.
link() {
  local flags=() group n package to=bin/test-programs/$other
  while [[ $1 == -* ]]; do flags+=("$1") && shift; done
  for ((n = 0; ; n++)); do
    group=$(printf '%s\n' "$@" | awk -F/ -v n="$n" 'seen[$NF]++ == n')
    [ -n "$group" ] || break
    mkdir -p "$to/$n" "$out/tmp" # on one file system go renames what it has linked, and leaves no part of a program
    # Without debugging information, as go test links. The linker collects its garbage less often: it takes a fifth less of the processors.
    GOTMPDIR=$PWD/$out/tmp GOGC=400 go test -c -vet=off -ldflags='-s -w' -o "$to/$n/" "${flags[@]}" $group
    for package in $group; do
      ln -s "$PWD/$to/$n/${package##*/}.test" "$out/programs/${package//\//+}"
    done
  done
}

# divide PACKAGES…: writes the lanes to files in $out/programs/lanes. One of two has the packages whose tests start Open vSwitch, and then the others from the
# last one on; the other lane has the others from the first one on. A package runs in the lane that comes to it first.
divide() {
  local to=$out/programs/lanes
  mkdir "$to" "$out/programs/begun"
  if [ "$lanes" -eq 1 ]; then
    printf '%s\n' "$@" >"$to/all"
    return
  fi
  printf '%s\n' "$@" | grep -vxF "$switches" >"$to/others" || true
  { printf '%s\n' "$@" | grep -xF "$switches" || true; tac "$to/others"; } >"$to/switches"
}

# programs NAME FLAGS… -- FLAG_OF_GO… PACKAGES…: the tests of packages after all programs were linked, those of a lane one after the other. The first flags
# are for these programs. `go test -p=1` alternates between linking on one processor and running.
programs() {
  local name=$1 flags=(-test.timeout="$limit" "${tier[@]/#-/-test.}") code=0
  shift
  while [ "$1" != -- ]; do flags+=("$1") && shift; done
  shift
  mkdir -p "$out/programs"
  GOROOT=$(go env GOROOT)
  export GOROOT PATH=$GOROOT/bin:$PATH # as go test does
  go build -o "$out/programs/test2json" cmd/test2json
  link "$@"
  while [[ $1 == -* ]]; do shift; done
  divide "$@"
  printf '%s\n' "$out/programs/lanes"/* >"$out/programs/lanes.list"
  sum "$name" pkgname --raw-command -- xargs -a "$out/programs/lanes.list" -P "$lanes" -I@LANE@ \
    xargs -a @LANE@ -P 1 -I{} scripts/test-package.sh "$PWD/$out/programs" {} "${flags[@]}" || code=$?
  rm -r "$out/programs"
  return "$code"
}

# labs NAME FLAGS…: once more, if no more than two tests failed, subtests aside, and none of them had a data race. test/e2e/fixture limits the time, and
# begins to count after another run's end; -timeout would begin before.
labs() {
  local name=$1
  shift
  sum "$name" standard-verbose --rerun-fails=1 --rerun-fails-max-failures=2 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
    --packages="./test/e2e ./test/attacks" -- -vet=off -timeout=0 -p=1 -count=1 "${tier[@]}" "$@"
}

# Packages whose tests use real parts (Open vSwitch, an API server, network namespaces) run in lanes, the others side by side.
imports='{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}{{range .TestImports}}{{$p}} {{.}}{{"\n"}}{{end}}{{range .XTestImports}}{{$p}} {{.}}{{"\n"}}{{end}}'
# test/vm is for `make test-kernel`.
packages=$(plain go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v /test/vm)
imported=$(plain go list -f "$imports" $packages)
real=$(awk '$2 ~ "ovsdn/test/(ovstest|apitest|lab|vm|bareagent|datapath)(/|$)|/plugins/pkg/ns$" {print $1}' <<<"$imported" | sort -u)
# Tests of the short tier compare no times, so that packages with Open vSwitch run beside those without: two of the same kind would wait for the same parts of
# the machine.
switches=$(awk '$2 ~ "ovsdn/test/(ovstest|bareagent|datapath)(/|$)" {print $1}' <<<"$imported" | sort -u)
pure=$(grep -vxF "$real" <<<"$packages")
# Packages of the product, and two of the tests' own. The short tier tests those of them in the step unit with the race detector. The complete tier does so with
# all but test/e2e and test/attacks, whose product code runs in programs of its own.
raced='ovsdn/(cmd|images|pkg)/|/test/(await|cni)$'
# Packages that start no goroutines themselves; tests of policy and images/product run in parallel, and share nothing. What most of them compute takes several
# times as long with the race detector.
sequential='ovsdn/(images/product|pkg/(sdn/(egressip|oracle|policy)|version))$'
clusters='/test/(e2e|attacks)$'
# Packages of the step unit.
concurrent=$(grep -E "$raced" <<<"$pure" | grep -vE "$sequential")
# Packages of the steps unit and tools that take longest.
longest='ovsdn/(images/product|pkg/(version|sdn/(endpoints|node/(dnsresolver|multicast)|master/subnet|policy))|test/language)$'
# Tests that ask millions of questions one after the other: the race detector would find nothing.
oracle='TestSwitchAgrees|Agrees?WithTheOracle'

# longest_first PACKAGES: the last packages leave a processor idle.
longest_first() { grep -E "$longest" <<<"$1" || true; grep -vE "$longest" <<<"$1"; }

# prepare builds the programs of labs and compiles all tests: no test runs beside a compiler.
prepare() {
  # Compilers and linkers live for seconds: without garbage collection they take a tenth less of the processors. Together they use at most half of the memory.
  GOMEMLIMIT=$(awk -v n="$(nproc)" '/^MemAvailable/ {printf "%dKiB", $2 / 2 / n}' /proc/meminfo)
  export GOMEMLIMIT GOGC=off
  make --no-print-directory build
  bin/ovsdn-lab prepare
  plain go build -modfile=scripts/tools/go.mod -o "$out/gotestsum" gotest.tools/gotestsum
  plain go list -test -deps -export ./... >/dev/null
  race go list -race -test -deps -export $concurrent >/dev/null
  [ "$other" = plain ] || race go list -race -test -deps -export $(grep -vE "$clusters" <<<"$packages") >/dev/null
  # Neither tier runs the tests of the kernel's datapath.
  plain go vet -tags guest ./test/cni ./pkg/sdn/node/hostnet ./test/vm/...
}

prepare_began=$SECONDS
run prepare
[ "$code" -eq 0 ] || { echo "test: failed: prepare" >&2; exit "$code"; }
echo "prepare $((SECONDS - prepare_began))" >>"$out/steps"
step unit race units unit -race -p=2 -skip="$oracle" $(longest_first "$concurrent")
step real "$other" programs real "${real_flags[@]}" -test.skip="$oracle" -- "${other_flags[@]}" $(grep -E "$raced" <<<"$real")
step tools "$other" units tools "${other_flags[@]}" -p=2 -skip="$oracle" $(longest_first "$(grep -vxF "$concurrent" <<<"$pure")")
step datapath "$other" programs datapath "${real_flags[@]}" -- "${other_flags[@]}" $(grep -vE -e "$raced" -e "$clusters" <<<"$real")
step oracle plain units oracle -p=2 -count=1 -run="$oracle" ./pkg/sdn/policy ./pkg/sdn/node/networkpolicy
step lab plain labs lab "${lab_flags[@]}"

commit=$(git -c safe.directory='*' describe --always --tags --dirty 2>/dev/null || echo unknown)
run plain go run ./test/report -history bin/flakes -commit "$commit" "$out"
[ "$code" -eq 0 ] || failed+=(report)
[ ${#failed[@]} -eq 0 ] || { echo "test: failed: ${failed[*]}" >&2; exit 1; }
