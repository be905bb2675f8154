#!/usr/bin/env bash
# test-kernel.sh [PACKAGE TESTS]...: runs the tests that depend on the datapath on the kernel datapath of Open vSwitch, in a virtual machine (test/vm).
# TESTS is a regular expression of names. Tests with the build tag guest run only in the virtual machine: they set the clock. The tests are built on
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
      if modprobe --quiet "$1"; then echo "$1 is loaded" >&2; exit 1; fi
      echo "a kernel without $1"
      cd pkg/sdn/node/hostnet
      "$OLDPWD/bin/kernel/backend.test" -test.v -test.run="^TestNewFirewall_kernelWithOneBackend$"' - "$module"
  done
  set -- test/datapath . pkg/sdn/pipeline '^Test(Switch|Trace|NodeSource)' pkg/sdn/node/restorewait '^TestPacketsFlow' pkg/sdn/node/br0 '^TestBridgeRepaired_randomForeignChanges$' \
    test/cni '^TestAgentWhileTheClockJumps$' \
    pkg/sdn/node/hostnet '^Test(TunnelIsNotTracked|ServicesOnTheVXLANPortStayTracked|VXLANFromUnknownVTEPsIsDropped|PodsDoNotLowerTheTunnelsMTU|VTEPsFollowHostSubnets|PodDoesNotFillConntrack|NeighbourTableThresholds)$' \
    pkg/sdn/node/servicenat '^Test(Rules|Rules_nodePortAddresses)$' \
    pkg/ovs/native '^Test(ListedConnectionsCanBeFlushed|ZonesAreLimited)$' pkg/sdn/node/networkpolicy '^Test(Flush_forbiddenConnections|Flush_connectionsOfDeletedPod|LargePacketsPassByTheirPort|DeniedPacketsAreLogged|RemoteClientsDoNotShareZones|ConnectionsOfPreviousVersionContinue|DestinationSweepCausesFewUpcalls)$'
fi
for ((i = 1; i < $#; i += 2)); do
  CGO_ENABLED=0 go test -c -tags guest -o "bin/kernel/${!i}.test" "./${!i}"
done
# One virtual machine for each package, so that its timeout is that of one package.
for ((i = 1; i < $#; i += 2)); do
  tests=$((i + 1))
  # shellcheck disable=SC2016 # these are the guest's variables
  bin/kernel/vmrun --memory 3072 --timeout 60m --env OVSDN_DATAPATH=system -- bash -euc '
    uname -sr
    modprobe tun # the userspace datapath needs it: the agent of test/cni runs on that
    cd "$1"
    "$OLDPWD/bin/kernel/$1.test" -test.v -test.timeout=58m -test.run="$2"' - "${!i}" "${!tests}"
done
