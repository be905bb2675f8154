package node

import (
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
)

// hostFeatures reports the firewall features that this host lacks. It is not safe for concurrent use.
type hostFeatures struct {
	skipped  func() []hostnet.Skipped // those that the last synchronization of the firewall could not set up
	warn     func(reason string, err error)
	reported map[hostnet.Feature]string // the last cause in an Event
}

func newHostFeatures(firewall hostnet.Firewall, r *nodestatus.Reporter) *hostFeatures {
	return &hostFeatures{skipped: firewall.Skipped, warn: r.Warn, reported: map[hostnet.Feature]string{}}
}

// effects returns the effects of the missing features, each after a comma, for the Node's condition. It sends an Event for each new cause.
func (h *hostFeatures) effects() (effects string) {
	for _, s := range h.skipped() {
		reason, effect, err := skippedFeature(s)
		effects += ", " + effect
		if cause := s.Err.Error(); reason != "" && h.reported[s.Feature] != cause {
			h.reported[s.Feature] = cause
			h.warn(reason, err)
		}
	}
	return effects
}

// skippedFeature returns the reason and the message of the Event about a feature, and its effect.
func skippedFeature(s hostnet.Skipped) (reason, effect string, err error) {
	switch s.Feature {
	case hostnet.FeatureNotrack:
		return eventreason.TunnelTracked, "tunnel tracked by the host's conntrack", fmt.Errorf(
			"the host's conntrack tracks the tunnel, with an entry for each connection between pods of two nodes: %w; %s, or raise nf_conntrack_max", s.Err, s.Remedy)
	case hostnet.FeatureVTEPs:
		return eventreason.TunnelUnrestricted, "VXLAN accepted from any address", fmt.Errorf(
			"the host accepts VXLAN from any address, and only Open vSwitch's flows drop that of unknown VTEPs: %w; %s", s.Err, s.Remedy)
	case hostnet.FeaturePodLimit:
		return eventreason.PodConnectionsUnlimited, "connections of pods not limited in the host's conntrack", fmt.Errorf(
			"one pod can fill the host's conntrack table, so that neither other pods nor the node can open connections: %w; %s", s.Err, s.Remedy)
	case hostnet.FeatureNotMasqueraded:
		return eventreason.MasqueradeExceptionsIgnored, "all packets of pods to hosts outside masqueraded", fmt.Errorf(
			"packets of this node's pods to all hosts outside are masqueraded, despite --ip-masq=false or the annotation ovsdn.io/non-masquerade-cidrs, "+
				"since the host's firewall can't recognize other nodes: %w; %s", s.Err, s.Remedy)
	case hostnet.FeatureAccept:
		return eventreason.FirewallAcceptsOverridden, "packets of pods possibly dropped by chains of other programs", fmt.Errorf(
			"other programs may drop packets of pods or of the tunnel to this node: %w; %s", s.Err, s.Remedy)
	case hostnet.FeatureEgressNotrack:
		return "", "packets of egress IPs tracked by the host's conntrack", nil
	default:
		return "", string(s.Feature) + " not supported by the kernel", nil
	}
}
