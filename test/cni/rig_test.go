package cni

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// patience bounds every wait; a machine shared with other tests can be slow.
const patience = 90 * time.Second

// rig is a node: a switch, a disk for the addresses, an agent, and what a runtime has.
type rig struct {
	*ovstest.Switch

	config agentConfig
	agent  *process
	disk   disk   // of the addresses
	bin    string // the plugin and cnitool
	conf   string // what the agent would write into /etc/cni/net.d
	cni    *libcni.CNIConfig
	log    *os.File // the agents'
}

// process is an agent.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

// newRig makes a node with an agent and the plugin. It skips the test without root.
func newRig(t testing.TB) *rig {
	t.Helper()
	r := newNode(t)
	build(t, r.bin, "github.com/ovsdn/ovsdn/cmd/ovsdn-cni")
	return r
}

// newNode makes a node with an agent, without the plugin. It skips the test without root.
func newNode(t testing.TB) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := &rig{Switch: ovstest.Start(t), bin: t.TempDir(), conf: t.TempDir(), disk: newDisk(t)}
	r.config = agentConfig{
		RunDir:  r.RunDir,
		Socket:  filepath.Join(r.RunDir, "cni", "s"), // a short path, see ovstest
		IPAMDir: r.disk.path,
		Events:  filepath.Join(t.TempDir(), "events"),
		Subnet:  netip.MustParsePrefix("10.128.2.0/24"),
	}
	if _, err := cniserver.WriteConfig(r.conf, r.config.Socket); err != nil {
		t.Fatal(err)
	}
	// The plugins' standard error is libcni's to read; it would go to the test's.
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{r.bin}, t.TempDir(), &invoke.DefaultExec{
		RawExec: &invoke.RawExec{Stderr: io.Discard}, PluginDecoder: version.PluginDecoder{},
	})
	log, err := os.Create(filepath.Join(t.TempDir(), "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	r.log = log
	t.Cleanup(func() {
		if t.Failed() {
			text, err := os.ReadFile(log.Name())
			t.Logf("the agent's log ends with (%v)\n%s", err, text[max(0, len(text)-logShown):])
		}
		log.Close()
	})
	r.start(t)
	t.Cleanup(func() { r.agent.kill() })
	return r
}

// logShown is how many bytes of the agent's log are shown when a test has failed.
const logShown = 8 << 10

// build builds a program into the directory.
func build(t testing.TB, dir, program string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
}

// start starts the agent, in the switch's network namespace.
func (r *rig) start(t testing.TB) {
	t.Helper()
	p, err := r.launch()
	if err != nil {
		t.Fatal(err)
	}
	r.agent = p
	r.awaitStatus(t, 0)
}

func (r *rig) launch() (*process, error) {
	config, err := json.Marshal(r.config)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asAgent+"="+string(config), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = r.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := r.NS.Do(func(ns.NetNS) error { return cmd.Start() }); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // tests kill it
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.ended
	p.stdin.Close()
}

// stop ends the agent as its supervisor does.
func (r *rig) stop(t testing.TB) {
	t.Helper()
	r.agent.stdin.Close()
	select {
	case <-r.agent.ended:
	case <-time.After(patience):
		r.agent.kill()
		t.Fatal("the agent does not stop")
	}
	if !r.agent.cmd.ProcessState.Success() {
		t.Errorf("the agent: %v", r.agent.cmd.ProcessState)
	}
}

// status asks the agent itself.
func (r *rig) status(t testing.TB) error {
	t.Helper()
	_, err := cniserver.Call(t.Context(), r.config.Socket, &cniserver.Request{
		Command: cniserver.CommandStatus, Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"}`),
	})
	return err
}

// awaitStatus waits until STATUS has that code.
func (r *rig) awaitStatus(t testing.TB, want uint) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := r.status(t)
		if code(t, err) == want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("STATUS has not the code %d: %v\n%s", want, err, r.Logs())
		}
	}
}

// code returns the CNI error code; 0 without an error.
func code(t testing.TB, err error) uint {
	t.Helper()
	var e *types.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	}
	t.Fatalf("not a CNI error: %v", err)
	return 0
}

// list returns the agent's network configuration in one version, with further keys for the plugin.
func (r *rig) list(t *testing.T, cniVersion string, keys map[string]any) *libcni.NetworkConfigList {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.conf, cniserver.ConfigName))
	if err != nil {
		t.Fatal(err)
	}
	var conf map[string]any
	if err := json.Unmarshal(text, &conf); err != nil {
		t.Fatal(err)
	}
	conf["cniVersion"] = cniVersion
	delete(conf, "cniVersions")
	plugin := conf["plugins"].([]any)[0].(map[string]any)
	for key, value := range keys {
		plugin[key] = value
	}
	if text, err = json.Marshal(conf); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// state is everything that is on the node because of pods: files, ports, flows, devices.
func (r *rig) state(t *testing.T) []string {
	t.Helper()
	var found []string
	entries, err := os.ReadDir(filepath.Join(r.disk.path, bareagent.Network))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch {
		case e.Name() == "lock", e.Name() == "freed", e.Name() == "probe", strings.HasPrefix(e.Name(), "last_reserved_ip."):
		default:
			found = append(found, "file "+e.Name())
		}
	}
	for port := range strings.Lines(r.VSCtl(t, "list-ports", ovstest.Bridge)) {
		found = append(found, "port "+strings.TrimSpace(port))
	}
	for port := range strings.Lines(r.VSCtl(t, "--columns=name", "--bare", "list", "Interface")) {
		if port = strings.TrimSpace(port); port != "" {
			found = append(found, "interface "+port)
		}
	}
	for _, flow := range r.Dump(t) {
		found = append(found, "flow "+flow)
	}
	for _, device := range devicesOf(t, r.NS) {
		found = append(found, "device "+device)
	}
	slices.Sort(found)
	return found
}

// devicesOf returns the names of the namespace's devices.
func devicesOf(t *testing.T, netns ns.NetNS) (names []string) {
	if err := netns.Do(func(ns.NetNS) error {
		links, err := netlinksafe.LinkList()
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	return names
}

// wantState compares what is on the node with what was.
func (r *rig) wantState(t *testing.T, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, r.state(t)); diff != "" {
		t.Errorf("on the node (-before +now):\n%s", diff)
	}
}

// wantEvent wants an Event that begins so.
func (r *rig) wantEvent(t *testing.T, prefix string) {
	t.Helper()
	text, err := os.ReadFile(r.config.Events)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if !strings.Contains("\n"+string(text), "\n"+prefix) {
		t.Errorf("no Event %q in\n%s", prefix, text)
	}
}
