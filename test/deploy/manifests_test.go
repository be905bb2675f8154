package deploy

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/pkg/sdn/node"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
)

// What network.env says, where people look, is what the programs do by themselves.
func TestNetworkEnvHasTheProgramsDefaults(t *testing.T) {
	root, err := checkout.Root(".")
	must(t, err)
	content, err := os.ReadFile(filepath.Join(root, "deploy", "base", "network.env"))
	must(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			got[key] = value
		}
	}
	m, n := master.Defaults(), node.Defaults()
	want := map[string]string{
		"kube-apiserver":  "",
		"mode":            m.Mode,
		"cluster-network": strings.Join(m.ClusterNetworks, ","),
		"host-bits":       strconv.Itoa(int(m.HostBits)),
		"service-network": m.ServiceNetwork,
		"vxlan-port":      strconv.Itoa(int(m.VXLANPort)),
		"mtu":             strconv.Itoa(int(m.MTU)),
		"service-proxy":   string(n.ServiceProxy),
		"datapath":        n.Datapath,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
