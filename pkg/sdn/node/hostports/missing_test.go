package hostports

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// recordOfPod returns the record of a pod with one host port, which equals its address' last byte.
func recordOfPod(h *host, last byte) record {
	return record{
		Attachment: Attachment{fmt.Sprintf("sandbox%d", last), "eth0"}, Netns: path(h.pod), Network: "ovsdn", Backend: h.backend,
		Mappings: []Mapping{tcp("", int(last))},
		Result: &current.Result{
			CNIVersion: current.ImplementedSpecVersion,
			IPs:        []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 128, 2, last), Mask: net.CIDRMask(24, 32)}}},
		},
	}
}

// To list the rules of many pods starts iptables no more often than for one: each run of the legacy backend copies the whole table.
func TestPortmap_listsTableOnce(t *testing.T) {
	h := newHost(t, BackendLegacy)
	legacy, err := exec.LookPath("iptables-legacy")
	must(t, err)
	program, log := filepath.Join(h.plugin.LegacyDir, "iptables"), filepath.Join(t.TempDir(), "runs")
	must(t, os.Remove(program))
	must(t, os.WriteFile(program, []byte("#!/bin/sh\necho \"$@\" >>"+log+"\nexec "+legacy+" \"$@\"\n"), 0o700))
	var all []record
	for last := byte(5); last < 9; last++ {
		all = append(all, recordOfPod(h, last))
		must(t, h.plugin.Add(t.Context(), all[len(all)-1]))
	}
	runs := func(r []record) string {
		must(t, os.WriteFile(log, nil, 0o600))
		if missing, err := h.plugin.Missing(t.Context(), r); err != nil || len(missing) > 0 {
			t.Errorf("missing rules: %v (%v), want none", missing, err)
		}
		content, err := os.ReadFile(log)
		must(t, err)
		return string(content)
	}
	if one, got := runs(all[:1]), runs(all); strings.Count(got, "\n") > strings.Count(one, "\n") {
		t.Errorf("for %d pods:\n%sfor one pod:\n%s", len(all), got, one)
	}
}
