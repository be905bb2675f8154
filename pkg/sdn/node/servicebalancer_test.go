package node

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/balancer"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// An agent writes rules of services if the host supports them, and else removes those of a previous one. It does not start while nft can't run.
func TestNewServiceNAT(t *testing.T) {
	for name, tc := range map[string]struct {
		check                string // what nft does with the rules
		host, fails, removes bool
	}{
		"supported": {"exit 0", true, false, false},
		"no module": {"exit 1", false, false, true},
		"killed":    {"kill -9 $$", false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.removes {
				addServicesTable(t)
			}
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			nft := "#!/bin/sh\ninput=$(/bin/cat)\ncase $input in *fib*) " + tc.check + "; esac\n[ $1 = --check ] || echo \"$input\" >>" + dir + "/written\n"
			if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(nft), 0o755); err != nil {
				t.Fatal(err)
			}
			client := fake.NewClientset()
			reporter := nodestatus.NewReporter(t.Context(), client, "node1")
			n := &nodeNetwork{agent: &agent{reporter: reporter}, node: pipeline.Node{Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}}}
			host, err := n.newServiceNAT(t.Context())
			reporter.Stop() // writes what is queued
			events, listErr := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
			if limited := len(events.Items) > 0 && events.Items[0].Reason == eventreason.ServiceLimited; listErr != nil || limited != tc.removes {
				t.Errorf("got Events %v, %v; want one of %s: %t", events.Items, listErr, eventreason.ServiceLimited, tc.removes)
			}
			if (host != nil) != tc.host || (err != nil) != tc.fails {
				t.Errorf("got %v and error %v, want rules: %t, an error: %t", host, err, tc.host, tc.fails)
			}
			written, err := os.ReadFile(filepath.Join(dir, "written"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if got := strings.Contains(string(written), "delete table ip ovsdn-services"); got != tc.removes {
				t.Errorf("got changes %q, want a deletion of the table: %t", written, tc.removes)
			}
		})
	}
}

// addServicesTable moves the test into a network namespace in which a previous agent left rules of services.
func addServicesTable(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "nft", "add table ip ovsdn-services").CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// The host's translation and the check of node ports get the same frontends.
func TestHostServices(t *testing.T) {
	first, second := setFrontends{}, setFrontends{}
	frontends := []servicenat.Frontend{{Protocol: corev1.ProtocolTCP, Port: 30080}}
	hostServices{first, second}.Set("a/web", frontends)
	for _, part := range []setFrontends{first, second} {
		if got := part["a/web"]; !reflect.DeepEqual(got, frontends) {
			t.Errorf("got frontends %v, want %v", got, frontends)
		}
	}
}

type setFrontends map[string][]servicenat.Frontend

func (s setFrontends) Set(service string, frontends []servicenat.Frontend) { s[service] = frontends }

// Packets to idled services are held with --unidle only.
func TestHoldIdled(t *testing.T) {
	for _, holds := range []bool{false, true} {
		n := &nodeNetwork{agent: &agent{}, node: pipeline.Node{BalancesServices: true, HoldsIdled: holds}}
		var options balancer.Options
		n.holdIdled(&options)
		if got := options.Idling != nil; got != holds || (n.idling != nil) != holds || (len(n.runs) > 0) != holds {
			t.Errorf("HoldsIdled %v: got %v for the balancer, Holder %v and %d runs", holds, options.Idling, n.idling, len(n.runs))
		}
	}
}
