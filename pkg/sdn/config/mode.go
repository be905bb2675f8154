package config

import "fmt"

// Mode is the isolation mode of the network. Its value is OpenShift SDN's plugin ID, the first byte of the version
// note in table 253.
type Mode uint8

// The modes.
const (
	ModeSubnet        Mode = 0 // no isolation
	ModeMultitenant   Mode = 1 // by VNID, and NetworkPolicy for traffic that VNIDs allow
	ModeNetworkPolicy Mode = 2 // by NetworkPolicy
)

// pluginPrefix precedes the short name of a mode in OpenShift's plugin names, which `oc adm pod-network` compares.
const pluginPrefix = "redhat/openshift-ovs-"

// ParseMode parses a mode's full OpenShift name (redhat/openshift-ovs-multitenant) or its short one (multitenant).
func ParseMode(s string) (Mode, error) {
	for m := ModeSubnet; m <= ModeNetworkPolicy; m++ {
		if s == m.String() || s == m.PluginName() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%q is not a mode: choose %s, %s or %s (or the full name, such as %s)",
		Shorten(s), ModeNetworkPolicy, ModeMultitenant, ModeSubnet, ModeNetworkPolicy.PluginName())
}

// String returns the short name.
func (m Mode) String() string {
	switch m {
	case ModeSubnet:
		return "subnet"
	case ModeMultitenant:
		return "multitenant"
	case ModeNetworkPolicy:
		return "networkpolicy"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// PluginName returns the full name, as ClusterNetwork.pluginName holds it.
func (m Mode) PluginName() string { return pluginPrefix + m.String() }

// PluginID returns OpenShift SDN's plugin id.
func (m Mode) PluginID() byte { return byte(m) }
