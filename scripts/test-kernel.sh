#!/usr/bin/env bash
# test-kernel.sh [PACKAGE TESTS]...: runs what depends on the datapath on the kernel's Open vSwitch, in a virtual machine
# (test/vm). TESTS is a regular expression of names. Tests with the build tag guest run only there: they set the clock. Test programs are built on
# this machine, since the virtual machine's processor is emulated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf bin/kernel
CGO_ENABLED=0 go build -o bin/kernel/vmrun ./test/vm/cmd/vmrun
if [ $# = 0 ]; then
  go test -count=1 -timeout 5m ./test/vm/...
  CGO_ENABLED=0 go test -c -o bin/kernel/backend.test ./pkg/sdn/node/hostnet
  for module in nf_tables ip_tables; do # hosts with one backend of iptables
    # shellcheck disable=SC2016 # these are the guest's variables
    bin/kernel/vmrun --timeout 5m -- sh -euc '
      echo "install $1 /bin/false" >/etc/modprobe.d/masked.conf
      if modprobe --quiet "$1"; then echo "$1 is there" >&2; exit 1; fi
      echo "a kernel without $1"
      cd pkg/sdn/node/hostnet
      "$OLDPWD/bin/kernel/backend.test" -test.v -test.run="^TestBackendIsOneThatTheKernelHas$"' - "$module"
  done
  set -- test/datapath . pkg/sdn/pipeline '^Test(Switch|Trace|NodeSource)' pkg/sdn/node '^TestPacketsFlow' \
    test/cni '^TestAgentWhileTheClockJumps$' \
    pkg/sdn/node/hostnet '^Test(TunnelIsNotTracked|ServicesOnTheVXLANPortStayTracked|VXLANFromStrangersIsDropped|PodsDoNotLowerTheTunnelsMTU|VTEPsFollowHostSubnets|PodDoesNotFillConntrack|NeighbourTableHasRoom)$' \
    pkg/ovs '^Test(ListedConnectionsCanBeFlushed|ZonesAreLimited)$' pkg/sdn/node/policies '^Test(ForbiddenConnectionsAreCut|NoConnectionOutlivesItsPod|LargePacketsPassByTheirPort|DeniedPacketsAreLogged|RemoteOpenersShareNoRoom|ConnectionsOfPreviousVersionGoOn|DestinationSweepCostsNoUpcalls)$'
fi
for ((i = 1; i < $#; i += 2)); do
  CGO_ENABLED=0 go test -c -tags guest -o "bin/kernel/${!i}.test" "./${!i}"
done
# shellcheck disable=SC2016 # these are the guest's variables
bin/kernel/vmrun --memory 3072 --timeout 25m --env OVSDN_DATAPATH=system -- bash -euc '
  uname -sr
  modprobe tun # the userspace datapath needs it: the agent of test/cni runs on that
  while [ $# -gt 1 ]; do
    (cd "$1" && "$OLDPWD/bin/kernel/$1.test" -test.v -test.timeout=20m -test.run="$2")
    shift 2
  done' - "$@"
