package pipeline

import (
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// WithEgressIP returns the cookies of pods whose flows on a bridge load an egress IP, usable or not.
func WithEgressIP(flows []ovs.DumpedFlow) map[uint64]bool {
	all := map[uint64]bool{}
	for _, f := range flows {
		if f.Key.Table == tablePodIngress && CookieKind(f.Cookie) == KindPod && strings.Contains(f.Text, "->"+regEgressIP) {
			all[f.Cookie] = true
		}
	}
	return all
}
