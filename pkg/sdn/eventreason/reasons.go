// Package eventreason lists the reasons of all Events of the project. Users and alert rules match them: a value never changes.
//
// The comment of each begins with the Event's type and its objects. docs/reference.md is generated from it.
package eventreason

// Reasons of the agent's Events about its node, and what exceeds its budgets.
const (
	// Warning on Node: the agent waits for a dependency, which the message names: ClusterNetwork, HostSubnet, the API server, a route, an MTU.
	NetworkWaiting = "NetworkWaiting"

	// Warning on Node: another program added a route that takes packets of the cluster or the service network; the message has the route.
	RouteOverlap = "RouteOverlap"

	// Warning on Node: a step of the network's set-up failed; the agent retries.
	NetworkSetupFailed = "NetworkSetupFailed"

	// Normal on Node: the network is set up; the message has the node's subnets, tunnel endpoint and MTU, and the firewall features that are missing.
	NetworkReady = "NetworkReady"

	// Warning on Node: another network's CNI configuration sorts before the agent's, so new pods get that network.
	OtherNetworkFirst = "OtherNetworkFirst"

	// Warning on Node: the host's conntrack tracks the tunnel, since the kernel lacks xt_CT, xt_addrtype or, for iptables-legacy, iptable_raw.
	TunnelTracked = "TunnelTracked"

	// Warning on Node: the host accepts VXLAN from any address, since the kernel lacks ip_set, ip_set_hash_ip, xt_set or xt_addrtype, or another program
	// created the set OVSDN-VTEPS.
	TunnelUnrestricted = "TunnelUnrestricted"

	// Warning on Node: packets of the node's pods to all hosts outside are masqueraded, despite --ip-masq=false or ovsdn.io/non-masquerade-cidrs, since the kernel
	// lacks ip_set, ip_set_hash_ip or xt_set. One for each cause.
	MasqueradeExceptionsIgnored = "MasqueradeExceptionsIgnored"

	// Warning on Node: one pod can fill the host's conntrack table, since the kernel lacks xt_connlimit or nf_conncount.
	PodConnectionsUnlimited = "PodConnectionsUnlimited"

	// Normal or Warning on Node: the CNI configuration or plugin was missing or changed, and is written again. Normal when the agent starts.
	CNIFilesWritten = "CNIFilesWritten"

	// Warning on Node: the CNI socket or its lock was deleted while the agent ran, and is restored.
	CNISocketRestored = "CNISocketRestored"

	// Warning on Node: the bridge or its fixed ports were deleted while the agent ran, and are restored.
	BridgeRestored = "BridgeRestored"

	// Warning on Node: another program changed flows, groups or meters of the bridge while the agent ran, and the agent repaired them. At most one in ten minutes, about
	// all changes since the last one. Not for a change of the fail mode, or while Open vSwitch is unavailable.
	FlowsRestored = "FlowsRestored"

	// Warning on Node: the agent's rules are in nftables, and chains of other tables drop packets by default, which an accept of the agent does not override. One for each
	// cause.
	FirewallAcceptsOverridden = "FirewallAcceptsOverridden"

	// Warning on Node: another program changed the agent's chains in iptables or nftables, or deleted jumps to them, while the agent ran, and the agent restored them. At most one in
	// ten minutes, about all changes since the last one. Changes of the sets OVSDN-VTEPS and OVSDN-EGRESS-IPS are not reported.
	FirewallRestored = "FirewallRestored"

	// Warning on Node: sockets of Open vSwitch were deleted while it runs; existing connections continue.
	OpenvSwitchSocketsMissing = "OpenvSwitchSocketsMissing"

	// Warning on Node: the cluster's services are outside of the service network.
	ServiceNetworkMismatch = "ServiceNetworkMismatch"

	// Warning on Node: with --service-proxy=ovs, a part of a service has no effect on this node: external IPs and load balancer addresses in the pod or service
	// network, with the API server's address and port, with UDP or SCTP ports above 32767 (external IPs), with VXLAN's UDP port, or beyond 1,024 of a service; more than
	// 256 endpoints of a port where the node may use only those on itself; external IPs, load balancer addresses and node ports that
	// another service has, too, and gets; these for other clients than pods, if the host lacks nftables (an Event of its own); load balancer addresses without an IPv4 source
	// range, or whose ranges would need more than 4,096 flows of a service, which are closed; SCTP ports on the userspace datapath; session affinity timeouts above
	// 65,535 s, and affinity of more than 8,192 combinations of address, port and endpoint of a service. One Event for each of these names one of the services and their
	// number, at most once in ten minutes; the agent's log names each service, up to 1,000 at once and one per second.
	ServiceLimited = "ServiceLimited"

	// Warning on Node: with --service-proxy=ovs, net.ipv4.ip_local_port_range of the host begins below 32768. Replies to the node's own connections from lower ports
	// may be lost: clients outside of services whose endpoints are on other nodes get these ports of the node. One for each range.
	LocalPortsOverlap = "LocalPortsOverlap"

	// Warning on Service or Node: with --service-proxy=ovs, the agent can't open the Service's healthCheckNodePort or, on the Node, the port of
	// --service-healthz-bind-address, as while a program of the node uses it; the agent tries again. Load balancers get no answer of the node there.
	HealthCheckPortFailed = "HealthCheckPortFailed"

	// Warning on Node: with --service-proxy=ovs, a program of the node listens at the node port of a Service, which gets the packets. Two checks, ten seconds apart, found
	// its socket of TCP or UDP: when the node port was added, or each five minutes. One for each node port, until a check does not find the socket.
	NodePortConflict = "NodePortConflict"

	// Warning on Node: with --service-proxy=ovs, the node has rules of kube-proxy, which apply before the agent's to connections from outside the cluster and from programs
	// of the node. The agent looks for them at its start and each minute; one Event until they are deleted.
	KubeProxyRules = "KubeProxyRules"

	// Warning on Node: with --service-proxy=external, no program has balanced services on the node for three minutes: kube-proxy has no rules, and Service kubernetes, by
	// which the agent finds other programs, does not answer. The agent checks at its start and each minute, and after it
	// has found one each ten minutes, so that the Event follows up to 14 minutes after a proxy has ended; one Event until a program balances services again.
	NoServiceProxy = "NoServiceProxy"

	// Warning on Node: with --service-proxy=ovs, the agent reaches the API server by an address of the service network: without kube-proxy it does not reach it after a
	// restart of the node.
	APIServerByService = "APIServerByService"

	// Warning on Node: rules of pods' host ports were deleted by another program, and are restored.
	HostPortsRestored = "HostPortsRestored"

	// Warning on Node: rules of pods' host ports can't be restored or deleted; the agent retries.
	HostPortsFailed = "HostPortsFailed"

	// Warning on Node: a Service, or a program of the node, uses the host port of a running pod, which gets the packets.
	HostPortConflict = "HostPortConflict"

	// Warning on Node: with --service-proxy=ovs, another program changed the nftables rules of node ports, external IPs and load balancer addresses, and they are restored.
	ServiceRulesRestored = "ServiceRulesRestored"

	// Warning on Node: with --service-proxy=ovs, the nftables rules of services can't be written: those of node ports, external IPs and load balancer addresses, and of
	// programs that are bound to the node's own IP; the agent retries.
	ServiceRulesFailed = "ServiceRulesFailed"

	// Warning on Node: the node's HostSubnet has an egress IP that this host can't place: it lies in no network of the host, or is in use. Namespaces that have the IP can't
	// send packets to outside with it.
	EgressIPNotPlaced = "EgressIPNotPlaced"

	// Warning on Node: NetworkPolicies exceed the budget of their namespace or of the node; they isolate its pods and allow nothing.
	NetworkPoliciesBeyondBudgets = "NetworkPoliciesBeyondBudgets"

	// Warning on EgressNetworkPolicy: the egress firewalls of a node's namespaces have more flows than its budget; there, packets of the namespace's pods to hosts
	// outside are dropped. On the first of the namespace's policies, by name.
	EgressFirewallBeyondBudget = "EgressFirewallBeyondBudget"
)

// Reasons of the agent's Events about the pods of its node.
const (
	// Warning on Pod: CNI ADD failed; the runtime retries.
	NetworkAttachFailed = "NetworkAttachFailed"

	// Warning on Pod: CNI CHECK found that the pod's network differs from the result of ADD or from the runtime's prevResult.
	NetworkCheckFailed = "NetworkCheckFailed"

	// Warning on Pod: two pods have the same address; the Event is on both.
	AddressInUseTwice = "AddressInUseTwice"

	// Warning on Pod: the pod's address is outside of the node's subnet, which has changed, so the pod has no network.
	AddressOutsideSubnet = "AddressOutsideSubnet"

	// Warning on Pod or Node: the pod declares a hostPort that is not mapped, since a version without host ports started the pod; delete the pod so that it is
	// created again. On each such pod when the agent starts; of more than 100 pods, the number of the others is on the Node.
	HostPortsMissing = "HostPortsMissing"

	// Warning on Pod: an annotation of the pod's bandwidth is invalid; the last valid limit of that direction stays active, at first none.
	InvalidBandwidth = "InvalidBandwidth"

	// Warning on Pod: the annotation pod.network.openshift.io/assign-macvlan differs from that with which the pod's network was set up; it has no effect on the
	// running pod.
	MacvlanUnchanged = "MacvlanUnchanged"

	// Warning on Pod or Node: the switch refused flows; on the Pod if a pod has no network since the agent started. The message names the object and the
	// switch's error. The agent tries again; until then its pod is not Ready and the Node has NetworkUnavailable=True. Also on a Pod
	// whose flows conflict with those of another object.
	NetworkFlowsRefused = "NetworkFlowsRefused"

	// Warning on Node: all addresses of the node's subnet are in use.
	NoFreeAddress = "NoFreeAddress"

	// Warning on Pod or Node: a running sandbox has an interface, but its port could not be rebuilt; on the Node if its pod is unknown. Its address stays
	// allocated.
	NetworkRebuildFailed = "NetworkRebuildFailed"

	// Warning on Pod: the interface of a running pod was deleted, and its address is released.
	NetworkInterfaceDeleted = "NetworkInterfaceDeleted"

	// Warning on Node: the bridge had lost the ports of running pods; they are rebuilt.
	PodPortsRebuilt = "PodPortsRebuilt"

	// Warning on Node: leases can't be written, as on a full or read-only disk.
	AddressStorageFailing = "AddressStorageFailing"

	// Warning on Node: leases of addresses in use were deleted, and are restored; no address was allocated twice.
	AddressLeasesRestored = "AddressLeasesRestored"
)

// Reasons of the controller's Events about the cluster network and HostSubnets.
const (
	// Warning on ClusterNetwork: a field is invalid; the previous network stays active.
	InvalidClusterNetwork = "InvalidClusterNetwork"

	// Warning on ClusterNetwork: the change conflicts with subnets or addresses in use; the previous network stays active.
	RefusedClusterNetwork = "RefusedClusterNetwork"

	// Normal on ClusterNetwork: an edit is active.
	AcceptedClusterNetwork = "AcceptedClusterNetwork"

	// Warning on ClusterNetwork: flags of ovsdn-controller differ from the object, which takes precedence.
	DiffersFromFlags = "DiffersFromFlags"

	// Warning on ClusterNetwork: it was deleted while no ovsdn-controller led, and nodes have HostSubnets. It is not created from flags, which may differ from what nodes
	// use.
	ClusterNetworkDeleted = "ClusterNetworkDeleted"

	// Warning on Node: the Node has no InternalIP that other nodes can tunnel to, or another HostSubnet has it.
	NodeAddressUnusable = "NodeAddressUnusable"

	// Warning on Node or HostSubnet: no subnet is allocated: the ranges of the cluster network are full, or the Node's HostSubnet is an external machine's.
	NoHostSubnet = "NoHostSubnet"

	// Warning on Node or HostSubnet: the HostSubnet can't be used; on the HostSubnet if no Node has its name.
	InvalidHostSubnet = "InvalidHostSubnet"
)

// Reasons of the controller's Events about namespaces and policies.
const (
	// Normal on NetNamespace: the VNID was changed as requested.
	NetworkChanged = "NetworkChanged"

	// Warning on NetNamespace: a requested change of the VNID is invalid; the annotation ovsdn.io/change-refused has the cause.
	NetworkChangeRefused = "NetworkChangeRefused"

	// Warning on Namespace or NetNamespace: no VNID is free.
	NoVNID = "NoVNID"

	// Warning on NetNamespace: the netid is invalid; the assigned VNID stays in use.
	InvalidNetNamespace = "InvalidNetNamespace"

	// Warning on NetNamespace: other namespaces have this VNID, and no join or global requested that.
	VNIDWrittenByHand = "VNIDWrittenByHand"

	// Warning on NetNamespace: a namespace of --global-namespaces has a VNID of its own.
	GlobalNamespaceIsolated = "GlobalNamespaceIsolated"

	// Warning on Namespace: the annotation ovsdn.io/log-denied is neither true nor false; nothing is logged.
	InvalidLogDenied = "InvalidLogDenied"

	// Warning on NetworkPolicy or ClusterNetworkPolicy: a part can't be enforced as written, or the policy exceeds a budget; the message names the part.
	PartlyNotEnforced = "PartlyNotEnforced"

	// Warning on EgressNetworkPolicy: a rule of the namespace's policies is invalid, or they exceed a budget; the last valid rules stay active, at first all packets
	// to outside are denied.
	InvalidEgressNetworkPolicy = "InvalidEgressNetworkPolicy"

	// Warning on EgressNetworkPolicy: it is not enforced, because the namespace has VNID 0; or its cidrSelector 0.0.0.0/32 is read as 0.0.0.0/0.
	EgressNetworkPolicyNotAsWritten = "EgressNetworkPolicyNotAsWritten"

	// Warning on EgressNetworkPolicy: the namespace has several; their rules are evaluated as one list, by the policies' names.
	EgressNetworkPoliciesMerged = "EgressNetworkPoliciesMerged"
)

// Reasons of the controller's Events about egress IPs.
const (
	// Warning on NetNamespace or HostSubnet: an entry of egressIPs or egressCIDRs is invalid, and ignored.
	InvalidEgressIP = "InvalidEgressIP"

	// Warning on NetNamespace or HostSubnet: an egress IP is not used: several namespaces have it, several nodes host it, it is a node's address, or it lies in the
	// cluster network or the service network.
	EgressIPConflict = "EgressIPConflict"

	// Warning on NetNamespace: for 30 seconds no node hosts an egress IP of the namespace.
	EgressIPNotHosted = "EgressIPNotHosted"

	// Normal on NetNamespace: another node hosts an egress IP of the namespace than before.
	EgressIPMoved = "EgressIPMoved"

	// Warning on HostSubnet: the controller can't reach a node that hosts egress IPs, or may host some.
	EgressNodeUnreachable = "EgressNodeUnreachable"

	// Normal on HostSubnet: the controller reaches the node again.
	EgressNodeReachable = "EgressNodeReachable"

	// Warning on HostSubnet: the node is Ready and answers no probe, as behind a firewall: it has never answered one, or not for two minutes. The Node's condition
	// Ready decides whether it hosts egress IPs.
	EgressProbeUnanswered = "EgressProbeUnanswered"
)

// Reasons of the Events of both programs about objects that ask for more than the network supports.
const (
	// Warning on Pod, AdminNetworkPolicy, BaselineAdminNetworkPolicy or, in mode subnet, NetNamespace, HostSubnet, NetworkPolicy and
	// ClusterNetworkPolicy: the object asks for something that the network does not support and ignores; the message has the field or annotation, the effect
	// and the alternative. On a Pod once, when its network is set up.
	NotSupported = "NotSupported"
)

// Reasons of the Events of both programs about idled services.
const (
	// Normal on Service: with --service-proxy=ovs and --unidle of the agent, a packet arrived for a service without endpoints that annotation
	// idling.alpha.openshift.io/idled-at idles; annotation idling.alpha.openshift.io/unidle-targets has what to scale. From an agent, at most one in ten seconds,
	// and for all services at most ten in a second; ovsdn-controller --unidle reads it.
	NeedPods = "NeedPods"

	// Normal on Service: the controller scaled the objects of an idled service to the replicas that they had, after a packet arrived.
	Unidled = "Unidled"

	// Warning on Service: the controller can't scale objects of an idled service; the message names the objects, the causes and what to do. If the failure may be
	// temporary, the controller tries again by itself for five minutes, else with a packet after the Service has changed, or after five minutes.
	UnidleFailed = "UnidleFailed"
)
