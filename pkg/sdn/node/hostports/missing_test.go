package hostports

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/ovsdn/ovsdn/test/tier"
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

// Rules without a record are deleted, with each backend, and no others; a refused ADD whose ports are invalid can be deleted, too.
func TestPortmap_unknownRules(t *testing.T) {
	for _, backend := range []Backend{BackendNFTables, BackendIPTables, BackendLegacy} {
		t.Run(string(backend), func(t *testing.T) {
			tier.Parallel(t)
			h := newHost(t, backend)
			known, unknown := recordOfPod(h, 5), recordOfPod(h, 6)
			for _, r := range []record{known, unknown} {
				must(t, h.plugin.Add(t.Context(), r))
			}
			removed, err := h.plugin.RemoveUnknown(t.Context(), func() func(string) bool { return func(id string) bool { return id == known.ruleID() } })
			if err != nil || len(removed) != 1 || removed[0] != unknown.ruleID() {
				t.Errorf("got removed %v (%v), want %s", removed, err, unknown.ruleID())
			}
			if got := h.rules(t); strings.Contains(got, "10.128.2.6") || !strings.Contains(got, "10.128.2.5") {
				t.Errorf("got rules\n%s\nwant those of the known pod", got)
			}
			known.Mappings = []Mapping{{Protocol: protocolTCP}}
			must(t, h.plugin.Del(t.Context(), known))
		})
	}
}

// The rules of a lost record are deleted when its sandbox is, and with an uninstallation.
func TestRemoveUnknown_lostRecords(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	n.mustAdd(t, "s2", "b", tcp("", 8081))
	damaged := records(n.dir).path(Attachment{"s1", "eth0"})
	must(t, os.Remove(damaged))
	n.restart(t)
	r := reconciler{Ports: n.ports}
	r.round(testContext(t))
	if got := n.plugin.sandboxes(); got != "s1 s2" {
		t.Errorf("while both sandboxes run: got rules of %q", got)
	}
	n.mustDel(t, "s1", "a")
	r.round(testContext(t))
	n.wantRules(t, "s2")
	lists := n.plugin.lists
	r.round(testContext(t))
	if n.plugin.lists != lists {
		t.Error("with all rules recorded: they were listed again")
	}
	must(t, os.WriteFile(records(n.dir).path(Attachment{"s2", "eth0"}), []byte("{"), 0o600))
	must(t, RemoveAll(testContext(t), n.plugin, n.dir))
	if got := n.plugin.sandboxes(); got != "" {
		t.Errorf("after an uninstallation: got rules of %q", got)
	}
}

// An uninstallation has 30 s for all of a node: with nftables it starts no program for each pod, with iptables one.
func TestRemoveAll_manyPods(t *testing.T) {
	for backend, want := range map[Backend]int{BackendNFTables: 0, BackendIPTables: 3, BackendLegacy: 3} {
		t.Run(string(backend), func(t *testing.T) {
			tier.Parallel(t)
			h := newHost(t, backend)
			dir := t.TempDir()
			for last := byte(5); last < 8; last++ {
				must(t, h.plugin.Add(t.Context(), recordOfPod(h, last)))
				must(t, records(dir).write(recordOfPod(h, last)))
			}
			program, log := h.plugin.Path, filepath.Join(t.TempDir(), "runs")
			must(t, os.WriteFile(log, nil, 0o600))
			h.plugin.Path = filepath.Join(t.TempDir(), PluginName)
			must(t, os.WriteFile(h.plugin.Path, []byte("#!/bin/sh\necho $CNI_COMMAND >>"+log+"\nexec "+program+"\n"), 0o700))
			must(t, RemoveAll(testContext(t), h.plugin, dir))
			runs, err := os.ReadFile(log)
			must(t, err)
			if got := strings.Count(string(runs), "DEL"); got != want {
				t.Errorf("portmap ran %d times, want %d", got, want)
			}
			if got := h.rules(t); strings.TrimSpace(got) != "" {
				t.Errorf("got rules\n%s", got)
			}
		})
	}
}

// Rules that a program of a failed ADD writes after its cleanup are deleted.
func TestRemoveUnknown_failedAdd(t *testing.T) {
	n := newNode(t)
	r := reconciler{Ports: n.ports}
	r.round(testContext(t))
	n.plugin.fails = errors.New("killed")
	if err := n.add(t, "s1", "a", tcp("", 8080)); !errors.Is(err, n.plugin.fails) {
		t.Errorf("got error %v, want that of portmap", err)
	}
	n.plugin.fails = nil
	r.round(testContext(t))
	must(t, n.plugin.Add(t.Context(), record{Attachment: Attachment{"s1", "eth0"}}))
	r.round(testContext(t))
	n.wantRules(t, "")
}
