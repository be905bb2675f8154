package pipeline

import (
	"fmt"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// VNIDsOf returns the VNIDs that a bridge's flows of pods and services were compiled with, by the owner's cookie. It leaves out owners
// whose flows differ in it. It returns nil if the bridge was in mode subnet, where all have VNID 0, or has no flow of tableVersion.
func VNIDsOf(flows []ovs.DumpedFlow) map[uint64]config.VNID {
	vnids, invalid, tenants := map[uint64]config.VNID{}, map[uint64]bool{}, false
	for _, f := range flows {
		var register string
		switch kind := CookieKind(f.Cookie); {
		case f.Key.Table == tableVersion:
			tenants = tenants || hasTenants(f.Text)
			continue
		case f.Key.Table == tablePodIngress && kind == KindPod:
			register = regSourceVNID
		case f.Key.Table == tableService && kind == KindService:
			register = regDestVNID
		default:
			continue
		}
		vnid, ok := loaded(f.Text, register)
		if other, known := vnids[f.Cookie]; !ok || known && other != vnid {
			invalid[f.Cookie] = true
			continue
		}
		vnids[f.Cookie] = vnid
	}
	if !tenants {
		return nil
	}
	for cookie := range invalid {
		delete(vnids, cookie)
	}
	return vnids
}

// hasTenants reports whether the flow of tableVersion is of a mode in which namespaces have VNIDs of their own.
func hasTenants(version string) bool {
	for _, mode := range []config.Mode{config.ModeMultitenant, config.ModeNetworkPolicy} {
		if strings.Contains(version, fmt.Sprintf("note:%02x.", mode.PluginID())) {
			return true
		}
	}
	return false
}

// loaded returns the VNID that a flow loads into the register.
func loaded(flow, register string) (config.VNID, bool) {
	_, actions, _ := strings.Cut(flow, "actions=")
	for action := range strings.SplitSeq(actions, ",") {
		if load, found := strings.CutSuffix(action, "->"+register); found {
			return loadedVNID(load)
		}
	}
	return 0, false
}
