package config

import "fmt"

// Mode is what isolates pods from each other. Its value is OpenShift SDN's plugin id, the first byte of the version
// note in table 253.
type Mode uint8

// The modes.
const (
	ModeSubnet        Mode = 0 // no isolation
	ModeMultitenant   Mode = 1 // by VNID; NetworkPolicy inside what the VNIDs allow
	ModeNetworkPolicy Mode = 2 // by NetworkPolicy
)

// pluginPrefix makes a mode's short name the name that OpenShift stores, and that `oc adm pod-network` compares.
const pluginPrefix = "redhat/openshift-ovs-"

// ParseMode reads a mode's full OpenShift name (redhat/openshift-ovs-multitenant) or its short one (multitenant).
func ParseMode(s string) (Mode, error) {
	for m := ModeSubnet; m <= ModeNetworkPolicy; m++ {
		if s == m.String() || s == m.PluginName() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%q is no mode: choose %s, %s or %s (or the full name, such as %s)",
		s, ModeNetworkPolicy, ModeMultitenant, ModeSubnet, ModeNetworkPolicy.PluginName())
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
