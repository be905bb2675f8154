package main

import "slices"

// mutations returns all mutations. Their tests are of the lowest layer that detects the fault; faults of flows are detected on a real switch.
func mutations() []Mutation { return slices.Concat(ofFlows(), ofHost(), ofObjects()) }

// ofFlows are faults of what the switch does with packets.
func ofFlows() []Mutation {
	return []Mutation{
		{
			Name: "anti-spoof flow missing",
			File: "pkg/sdn/pipeline/pod.go",
			Old:  "source := []ovs.Match{goovs.DataLinkSource(mac), ovs.IPSource(single(addr))}",
			New:  "source := []ovs.Match{goovs.DataLinkSource(mac)}",
			Test: Test{Package: "pkg/sdn/pipeline", Run: "^TestTrace$/^pod_forges_its_IP$"},
		},
		{
			Name: "VNID check off",
			File: "pkg/sdn/pipeline/vnid.go",
			Old:  "s.add(tableIsolation, 0, anything(), n.FlowExport.drop(PointIsolation)...)",
			New:  "s.add(tableIsolation, 0, anything(), toPort)",
			Test: Test{Package: "pkg/sdn/pipeline", Run: "^TestTraceTenants$/^another_VNID_"},
		},
		{
			Name: "policy verdict inverted",
			File: "pkg/sdn/pipeline/policy.go",
			Old:  "case action == PolicyDeny:",
			New:  "case action == PolicyAllow:",
			Test: Test{Package: "pkg/sdn/node/networkpolicy", Run: "^TestFlush_forbiddenConnections$"},
		},
		{
			Name: "table 10 without the peer check",
			File: "pkg/sdn/pipeline/nodesource.go",
			Old:  "ip(ovs.TunnelSource(p.VTEP), ovs.IPSource(subnet))",
			New:  "ip(ovs.IPSource(subnet))",
			Test: Test{Package: "pkg/sdn/pipeline", Run: "^TestTrace$/^stranger_to_pod$"},
		},
		{
			Name: "restart rewrites all flows",
			File: "pkg/ovs/native/flowdigests.go",
			Old:  "if err == nil && content == w.contents[i] {",
			New:  "if err == nil && content != w.contents[i] {",
			Test: Test{Package: "pkg/sdn/node/flowstore", Run: "^TestRun_restartOfTheAgentSendsNothing$"},
		},
	}
}

// ofHost are faults of pods and of the host.
func ofHost() []Mutation {
	return []Mutation{
		{
			Name: "IPAM allocates an address twice",
			File: "pkg/sdn/node/ipam/lease.go",
			Old:  "os.O_CREATE|os.O_EXCL|os.O_WRONLY",
			New:  "os.O_CREATE|os.O_TRUNC|os.O_WRONLY",
			Test: Test{Package: "pkg/sdn/node/ipam", Run: "^TestAllocate_leaseOfAnotherProcess$"},
		},
		{
			Name: "DEL leaves the port",
			File: "pkg/sdn/node/pods/delete.go",
			Old:  "if err := m.bridge.DeletePort(ctx, a.HostVeth()); err != nil {",
			New:  "if err := ctx.Err(); err != nil {",
			Test: Test{Package: "pkg/sdn/node/pods", Run: "^TestPodsConnect$"},
		},
		{
			Name: "NOTRACK missing",
			File: "pkg/sdn/node/hostnet/rules.go",
			Old:  ", notrackChains(vxlan), egressChains())...",
			New:  ", notrackChains(vxlan)[:0], egressChains())...",
			Test: Test{Package: "pkg/sdn/node/hostnet", Run: "^TestTunnelIsNotTracked$"},
		},
	}
}

// ofObjects are faults in the handling of API objects.
func ofObjects() []Mutation {
	return []Mutation{
		{
			Name: "allocator order",
			File: "pkg/sdn/master/subnet/range.go",
			Old:  "r.sharedBits = inOctet",
			New:  "r.sharedBits = 0",
			Test: Test{Package: "pkg/sdn/master/subnet", Run: "^TestAllocate_orderOfOpenShift$"},
		},
		{
			Name: "agent ignores HostSubnet changes",
			File: "pkg/sdn/node/remotenodes/remotenodes.go",
			Old:  "r.loop.Watch(informer)",
			New:  "r.loop.WatchUnless(informer, func(_, _ any) bool { return true })",
			Test: Test{Package: "pkg/sdn/node/remotenodes", Run: "^TestHostSubnet_createUpdateDelete$"},
		},
	}
}
