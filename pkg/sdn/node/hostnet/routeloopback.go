package hostnet

import "github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"

// RouteLoopback sets route_localnet of tun0: the node's programs reach host ports at 127.0.0.1, which portmap masquerades. The firewall drops packets of
// pods to these addresses.
func RouteLoopback(dir sysctl.Dir, permit bool) error {
	value := "0"
	if permit {
		value = "1"
	}
	_, err := dir.Ensure(sysctl.Setting{Key: "net/ipv4/conf/INTERFACE/route_localnet", Value: value}, Tun0Name, nil)
	return err
}
