package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
)

// testDiagnostics is a part of TestCapabilities: an administrator reads the state of the nodes and the flows of a pod, whose counters have the pod's packets,
// by the aggregated API; a user without rights, and a pod that asks an agent itself, read nothing.
func testDiagnostics(t *testing.T, x *trio) {
	fixture.Eventually(t, fixture.SyncTime, "status", func(ctx context.Context) error {
		var list struct{ Items []diagnostics.NodeStatus }
		if err := x.kubectlOVSDN(ctx, &list, "status"); err != nil {
			return err
		}
		if got, want := len(list.Items), len(x.Nodes()); got != want {
			return fmt.Errorf("got %d nodes, want %d", got, want)
		}
		for _, node := range list.Items {
			if got, want := node.Status.Peers, len(x.Nodes())-1; got != want {
				return fmt.Errorf("%s probes %d nodes, want %d", node.Name, got, want)
			}
		}
		return nil
	})
	fixture.Eventually(t, fixture.SyncTime, "flows that differ", func(ctx context.Context) error {
		return x.kubectlOVSDN(ctx, nil, "flows", fixture.Node1, "--diff")
	})

	object := "pod/" + x.namespace + "/" + x.a.Name
	packets := func(ctx context.Context) (sum uint64, err error) {
		var got diagnostics.NodeFlows
		if err := x.kubectlOVSDN(ctx, &got, "flows", fixture.Node1, object); err != nil {
			return 0, err
		}
		for _, f := range got.Flows {
			sum += f.Packets
		}
		return sum, nil
	}
	before, err := packets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
	fixture.Eventually(t, fixture.SyncTime, "packets of flows", func(ctx context.Context) error { // vswitchd reads the datapath's counters every half second
		after, err := packets(ctx)
		if err == nil && after <= before {
			err = fmt.Errorf("got %d packets after a ping, %d before", after, before)
		}
		return err
	})

	seeTraffic(t, x)
	seeDrops(t, x)
	seeSupportBundle(t, x)
	seeClosedReader(t, x)

	for _, path := range []string{diagnostics.StatusPath, diagnostics.FlowsPath, diagnostics.TrafficPath} {
		status, _, err := getFromAgent(t.Context(), x.a.NetNS, x.Addr(t, fixture.Node1), path, "")
		if err != nil || status != http.StatusUnauthorized {
			t.Errorf("%s by a pod: got status %d, error %v, want %d", path, status, err, http.StatusUnauthorized)
		}
	}
	seeRefusals(t, x, object, "pod/"+x.namespace+"/"+x.c.Name)
}

// seeRefusals runs each command as a user without rights.
func seeRefusals(t *testing.T, x *trio, pod, other string) {
	t.Helper()
	user := "--as=system:serviceaccount:" + x.namespace + ":default"
	bundle := filepath.Join(t.TempDir(), "refused.tar.gz")
	for _, args := range [][]string{
		{"status"}, {"flows", fixture.Node1}, {"flows", fixture.Node1, pod}, {"trace", pod, other, "--tcp=80"}, {"probe", pod, other, "--tcp=80"},
		{"verify"}, {"verify", "--namespace=" + x.namespace}, {"verify", "--packets", "--namespace=" + x.namespace}, {"capture", pod, "--write=" + bundle},
		{"drops"}, {"top", "pods"}, {"top", "namespaces"}, {"top", "nodes"}, {"egress-ips"}, {"get-vnids"}, {"support-bundle", "--file=" + bundle},
	} {
		stdout, stderr, err := x.runOVSDN(t.Context(), append(args, user)...)
		if err == nil || !strings.Contains(stderr, "forbidden") || strings.Contains(stdout, x.a.Addr.String()) {
			t.Errorf("%q as a user without rights: got error %v, want that it is forbidden\n%s%s", args, err, stderr, stdout)
		}
	}
}

// TestPeerProblems: packets to the tun0 of a node are lost, as with a firewall that drops VXLAN, and status names the node until they arrive again.
func TestPeerProblems(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: three probes in a row must be lost, one every ten seconds")
	}
	x := newTrio(t)
	healthy := func(ctx context.Context) error {
		if err := x.kubectlOVSDN(ctx, nil, "status"); err != nil {
			return err
		}
		var list struct{ Items []diagnostics.NodeStatus }
		if err := x.kubectlOVSDN(ctx, &list, "status"); err != nil {
			return err
		}
		for _, node := range list.Items { // a node that has never answered is not reported, nor its overlay for some minutes
			if got, want := node.Status.AnsweringPeers, len(x.Nodes())-1; got != want {
				return fmt.Errorf("%d nodes answer the probes of %s, want %d", got, node.Name, want)
			}
		}
		return nil
	}
	fixture.Eventually(t, fixture.SyncTime, "status before", healthy)
	rule := []string{"PREROUTING", "-i", "tun0", "-p", "icmp", "-j", "DROP"}
	x.Output(t, fixture.Node2, append([]string{"iptables", "-t", "raw", "-I"}, rule...)...)
	remove := append([]string{"iptables", "-t", "raw", "-D"}, rule...)
	t.Cleanup(func() { _, _ = x.TryOutput(context.WithoutCancel(t.Context()), fixture.Node2, remove...) }) // it was removed
	want := []string{fixture.Node2 + ": from ", ": the overlay does not answer, the underlay does"}
	fixture.Eventually(t, fixture.SyncTime, "status with the fault", func(ctx context.Context) error {
		if err := healthy(ctx); err == nil || !fixture.ContainsAll(err.Error(), want) {
			return fmt.Errorf("got %w, want %q", cmp.Or(err, errors.New("no error")), want)
		}
		return nil
	})
	x.Output(t, fixture.Node2, remove...)
	fixture.Eventually(t, fixture.SyncTime, "status after", healthy)
}

// seeDrops sends packets to an address of the node's subnet that no pod has, and sees them in the counters, which are up to 15 seconds old.
func seeDrops(t *testing.T, x *trio) {
	t.Helper()
	drops := func(ctx context.Context) (packets uint64, err error) {
		var node diagnostics.NodeStatus
		if err := x.kubectlOVSDN(ctx, &node, "status", fixture.Node1); err != nil {
			return 0, err
		}
		for _, d := range node.Status.Drops {
			if d.Reason == pipeline.DropNoRoute {
				packets += d.Packets
			}
		}
		return packets, nil
	}
	before, err := drops(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := x.Subnet(t, fixture.Node1).Addr().AsSlice()
	last[2]++ // the last addresses of the subnet are allocated last
	last[3] = 250
	unused, _ := netip.AddrFromSlice(last)
	fixture.Eventually(t, fixture.SyncTime, "drops", func(ctx context.Context) error {
		if err := pingBriefly(ctx, x.a.NetNS, unused); err == nil {
			return fmt.Errorf("%s answers", unused)
		}
		after, err := drops(ctx)
		if err == nil && after <= before {
			err = fmt.Errorf("got %d dropped packets, %d before packets to %s", after, before, unused)
		}
		return err
	})
	if err := x.kubectlOVSDN(t.Context(), nil, "drops", fixture.Node1); err != nil {
		t.Error(err)
	}
}

// seeTraffic sends packets between pods of two nodes while top reads their counters twice, and sees their rates.
func seeTraffic(t *testing.T, x *trio) {
	t.Helper()
	pings, err := x.a.NetNS.PingEvery(t.Context(), 100*time.Millisecond, x.c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.SyncTime, "traffic", func(ctx context.Context) error {
		var got struct {
			Items []struct {
				Metadata metav1.ObjectMeta
				In, Out  struct{ PacketsPerSecond float64 }
			}
		}
		if err := x.kubectlOVSDN(ctx, &got, "top", "pods", "--namespace="+x.namespace, "--limit=0", "--interval=1s"); err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, pod := range got.Items {
			seen[pod.Metadata.Name] = pod.In.PacketsPerSecond >= 5 && pod.Out.PacketsPerSecond >= 5
		}
		if !seen[x.a.Name] || !seen[x.c.Name] {
			return fmt.Errorf("got %+v, want ten packets per second of %s and %s in both directions", got.Items, x.a.Name, x.c.Name)
		}
		return nil
	})
	if _, _, err := pings.Stop(); err != nil {
		t.Error(err)
	}
}

// seeSupportBundle writes a bundle, which has the flows and the agent's log of a node, and not the key of the diagnostics authority.
func seeSupportBundle(t *testing.T, x *trio) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := x.kubectlOVSDN(t.Context(), nil, "support-bundle", fixture.Node1, "--file="+path); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "tar", "--extract", "--to-stdout", "--verbose", "--file="+path)
	var content, names bytes.Buffer
	list.Stdout, list.Stderr = &content, &names
	if err := list.Run(); err != nil {
		t.Fatalf("tar: %v\n%s", err, names.String())
	}
	for _, name := range []string{"/nodestatuses.json", "/flows/" + fixture.Node1 + ".json", ".log", "/contents.txt"} {
		if !strings.Contains(names.String(), name) {
			t.Errorf("no %s in the bundle:\n%s", name, names.String())
		}
	}
	secrets, err := x.Kube.CoreV1().Secrets(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(secrets.Items, func(s corev1.Secret) bool { return len(s.Data[certificates.KeyKey]) > 0 }) {
		t.Error("no Secret has the key of the diagnostics authority")
	}
	for _, secret := range secrets.Items {
		for key, value := range secret.Data {
			if holds(content.Bytes(), value) {
				t.Errorf("the bundle has %s of Secret %s/%s", key, secret.Namespace, secret.Name)
			}
		}
	}
	if token := regexp.MustCompile(`eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+`).Find(content.Bytes()); token != nil || bytes.Contains(content.Bytes(), []byte("PRIVATE KEY")) {
		t.Errorf("the bundle has a private key, or the token %q", token)
	}
}

// holds reports whether the content has a line of a secret value, as it is or by base64. Certificates, which are public, are no secrets.
func holds(content, value []byte) bool {
	if bytes.HasPrefix(value, []byte("-----BEGIN CERTIFICATE-----")) {
		return false
	}
	encoded := base64.StdEncoding.AppendEncode(nil, value)
	return slices.ContainsFunc(append(bytes.Split(value, []byte("\n")), encoded), func(line []byte) bool {
		return len(line) >= 16 && !bytes.HasPrefix(line, []byte("-----")) && bytes.Contains(content, line)
	})
}

func pingBriefly(ctx context.Context, from wire.NetNS, to netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	return from.Ping(ctx, to, wire.Echo{})
}

// kubectlOVSDN runs `kubectl ovsdn` as the administrator, and decodes its output if the target is not nil. Exit codes other than 0 are errors.
func (c *cluster) kubectlOVSDN(ctx context.Context, into any, args ...string) error {
	if into != nil {
		args = append(args, "--output=json")
	}
	stdout, stderr, err := c.runOVSDN(ctx, args...)
	if err != nil {
		return fmt.Errorf("kubectl ovsdn %s: %w: %s%s", strings.Join(args, " "), err, stderr, stdout)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal([]byte(stdout), into)
}

// runOVSDN runs `kubectl ovsdn` as the administrator.
func (c *cluster) runOVSDN(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	err = c.writeOVSDN(ctx, &out, &errOut, args...)
	return out.String(), errOut.String(), err
}

// writeOVSDN is runOVSDN with writers.
func (c *cluster) writeOVSDN(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	root, err := checkout.Root(".")
	if err != nil {
		return err
	}
	kubeconfig, err := c.Kubeconfig()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kubectl-ovsdn-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "kubectl-ovsdn"), append(args, "--kubeconfig="+path)...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd.Run()
}

// seeClosedReader runs commands whose output is a pipe without a reader, as with `| head`: they end as other commands of a pipe do.
func seeClosedReader(t *testing.T, x *trio) {
	t.Helper()
	for _, args := range [][]string{{"flows", fixture.Node1}, {"status", "--watch"}} {
		fixture.Eventually(t, fixture.SyncTime, "end with the reader: "+strings.Join(args, " "), func(ctx context.Context) error {
			reader, writer, err := os.Pipe()
			if err != nil {
				return err
			}
			defer writer.Close()
			if err := reader.Close(); err != nil {
				return err
			}
			var stderr bytes.Buffer
			err = x.writeOVSDN(ctx, writer, &stderr, args...)
			if err == nil {
				return errors.New("got no error, want SIGPIPE")
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				return err
			}
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGPIPE || stderr.Len() > 0 {
				return fmt.Errorf("got %w with errors %q, want SIGPIPE without", err, stderr.String())
			}
			return nil
		})
	}
}
