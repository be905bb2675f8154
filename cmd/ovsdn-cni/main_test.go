package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// With this variable the test binary runs as the plugin.
const asPlugin = "OVSDN_TEST_AS_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		main()
		return
	}
	m.Run()
}

// agent records requests and answers each with the same result.
type agent struct {
	mu       sync.Mutex
	requests []*cniserver.Request
	err      error
}

func (a *agent) record(r *cniserver.Request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r)
	return a.err
}

// seen returns the commands of the received requests.
func (a *agent) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var commands []string
	for _, r := range a.requests {
		commands = append(commands, r.Command)
	}
	return commands
}

func (a *agent) Add(_ context.Context, r *cniserver.Request) (*current.Result, error) {
	_, subnet, err := net.ParseCIDR("10.128.0.0/23")
	if err != nil {
		return nil, err
	}
	return &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: "veth0", Mtu: 1450}, {Name: r.IfName, Sandbox: r.Netns, Mtu: 1450}},
		IPs: []*current.IPConfig{{
			Interface: current.Int(1),
			Address:   net.IPNet{IP: net.IPv4(10, 128, 0, 5).To4(), Mask: subnet.Mask},
			Gateway:   net.IPv4(10, 128, 0, 1),
		}},
		Routes: []*types.Route{{Dst: *subnet}},
	}, a.record(r)
}

func (a *agent) Del(_ context.Context, r *cniserver.Request) error   { return a.record(r) }
func (a *agent) Check(_ context.Context, r *cniserver.Request) error { return a.record(r) }
func (a *agent) GC(_ context.Context, r *cniserver.Request) error    { return a.record(r) }
func (a *agent) Status(context.Context) error                        { return a.record(&cniserver.Request{Command: "STATUS"}) }

func serve(t *testing.T, a *agent) (socket string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "cni")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := cniserver.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cniserver.Serve(ctx, l, a) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return socket
}

// plugin runs the plugin and returns its output and whether it succeeded.
func plugin(t *testing.T, command, cniVersion, socket string) (stdout []byte, ok bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{
		asPlugin + "=1", "CNI_COMMAND=" + command, "CNI_CONTAINERID=abc", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=p", "CNI_PATH=/opt/cni/bin",
		"GORACE=atexit_sleep_ms=0", // a second a process otherwise, under the race detector
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":%q,"name":"ovsdn","type":"ovsdn-cni","socket":%q}`, cniVersion, socket))
	stdout, err := cmd.Output()
	return stdout, err == nil
}

func TestVerbs(t *testing.T) {
	a := new(agent)
	socket := serve(t, a)
	const tooOld = types.ErrIncompatibleCNIVersion
	versions := []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for _, tt := range []struct {
		command string
		codes   []uint // by version; 0: no error
	}{
		{"ADD", []uint{0, 0, 0, 0}},
		{"DEL", []uint{0, 0, 0, 0}},
		{"CHECK", []uint{tooOld, 0, 0, 0}},
		{"GC", []uint{tooOld, tooOld, tooOld, 0}},
		{"STATUS", []uint{tooOld, tooOld, tooOld, 0}},
		{"VERSION", []uint{0, 0, 0, 0}},
		{"EXPLODE", []uint{4, 4, 4, 4}},
	} {
		for i, v := range versions {
			t.Run(tt.command+" "+v, func(t *testing.T) {
				before := a.seen()
				out, ok := plugin(t, tt.command, v, socket)
				if code := codeIn(t, out, ok); code != tt.codes[i] {
					t.Fatalf("code %d, want %d: %s", code, tt.codes[i], out)
				}
				want := before
				if tt.codes[i] == 0 && tt.command != "VERSION" {
					want = append(want, tt.command)
				}
				if diff := cmp.Diff(want, a.seen()); diff != "" {
					t.Errorf("what reached the agent (-want +got):\n%s", diff)
				}
				switch {
				case !ok:
				case tt.command == "ADD":
					checkResult(t, out, v)
				case tt.command == "VERSION":
					info, err := new(version.PluginDecoder).Decode(out)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(versions, info.SupportedVersions()); diff != "" {
						t.Error(diff)
					}
				case len(out) > 0:
					t.Errorf("printed %s", out)
				}
			})
		}
	}
}

func codeIn(t *testing.T, out []byte, ok bool) uint {
	t.Helper()
	if ok {
		return 0
	}
	var e types.Error
	if err := json.Unmarshal(out, &e); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return e.Code
}

func checkResult(t *testing.T, out []byte, v string) {
	t.Helper()
	result, err := version.NewResult(v, out)
	if err != nil {
		t.Fatal(err)
	}
	if result.Version() != v {
		t.Errorf("version %s, want %s", result.Version(), v)
	}
	got, err := current.GetResult(result)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.IPs) != 1 || got.IPs[0].Address.String() != "10.128.0.5/23" || *got.IPs[0].Interface != 1 ||
		len(got.Interfaces) != 2 || got.Interfaces[1].Sandbox != "/nowhere" || len(got.Routes) != 1 {
		t.Errorf("result %s", out)
	}
}

func TestErrors_areReturned(t *testing.T) {
	a := &agent{err: types.NewError(types.ErrInvalidNetNS, "no such netns", "look at /nowhere")}
	socket := serve(t, a)
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		out, ok := plugin(t, command, "1.1.0", socket)
		var got types.Error
		if err := json.Unmarshal(out, &got); err != nil || ok {
			t.Fatalf("%s: %v, %v in %s", command, ok, err, out)
		}
		if diff := cmp.Diff(types.Error{Code: types.ErrInvalidNetNS, Msg: "no such netns", Details: "look at /nowhere"}, got); diff != "" {
			t.Errorf("%s: %s", command, diff)
		}
	}
}

func TestCall_noAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	for command, want := range map[string]uint{
		"ADD":    types.ErrTryAgainLater,
		"DEL":    types.ErrTryAgainLater, // runtimes repeat it: an answer of success would leak the address
		"STATUS": types.ErrPluginNotAvailable,
	} {
		out, ok := plugin(t, command, "1.1.0", socket)
		if code := codeIn(t, out, ok); code != want || !bytes.Contains(out, []byte(socket)) {
			t.Errorf("%s: code %d, want %d: %s", command, code, want, out)
		}
	}
}
