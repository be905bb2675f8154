package config

// EgressProbedAnnotation is "true" on a HostSubnet whose node has answered a probe of its reachability (docs/egress-ips.md#failover). A new leader of the controllers
// then knows that no firewall drops the probes, and that a node without an answer is not reachable.
const EgressProbedAnnotation = "ovsdn.io/egress-probed"
