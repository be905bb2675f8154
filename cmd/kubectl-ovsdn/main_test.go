package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

const patience = 90 * time.Second // a loaded machine is slow

// user runs the plugin against a cluster.
type user struct {
	kubeconfig string
	admin      *rest.Config
	kube       kubernetes.Interface
	network    networkclient.Interface
}

func newUser(t *testing.T) *user {
	t.Helper()
	u := &user{admin: apitest.Start(t)}
	u.kubeconfig = apitest.Kubeconfig(t, u.admin)
	u.kube, u.network = apitest.Clients(t, u.admin)
	return u
}

// types runs the plugin, and returns its exit code and its output.
func (u *user) types(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	streams, _, o, e := genericiooptions.NewTestIOStreams()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	code = run(ctx, append([]string{"--kubeconfig", u.kubeconfig}, args...), streams)
	return code, o.String(), e.String()
}

// wants runs the plugin and compares its output. Out and errOut are substrings; "" is no output.
func (u *user) wants(t *testing.T, code int, out, errOut string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := u.types(t, args...)
	if gotCode != code || !strings.Contains(gotOut, out) || out == "" && gotOut != "" || !strings.Contains(gotErr, errOut) || errOut == "" && gotErr != "" {
		t.Errorf("%s: exit code %d\n%s%s", strings.Join(args, " "), gotCode, gotOut, gotErr)
	}
}

func (u *user) create(t *testing.T, labels map[string]string, names ...string) {
	t.Helper()
	for _, name := range names {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := u.kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// vnid waits until the namespace has a VNID.
func (u *user) vnid(t *testing.T, name string) (vnid uint32) {
	t.Helper()
	eventually(t, func() error {
		nn, err := u.network.NetworkV1().NetNamespaces().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			vnid = nn.NetID
		}
		return err
	})
	return vnid
}

func eventually(t *testing.T, look func() error) {
	t.Helper()
	await.OK(t, patience, func(context.Context) error { return look() })
}

// mode creates a ClusterNetwork of this mode, and starts a master.
func (u *user) mode(t *testing.T, plugin string) (stop func()) {
	t.Helper()
	o := &networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: "default"},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
		ServiceNetwork:  "172.30.0.0/16", PluginName: plugin,
	}
	client := u.network.NetworkV1().ClusterNetworks()
	if err := client.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cfg := master.Defaults()
	cfg.REST, cfg.LeaderElect, cfg.HealthzAddress = u.admin, false, "0"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- master.Run(ctx, cfg) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestChanges runs a user's session on a real API server with the real controller.
func TestChange(t *testing.T) {
	tier.Parallel(t)
	u := newUser(t)
	u.wants(t, exitFailed, "", "get the cluster's network", "isolate-projects", "p1")
	u.create(t, nil, "p1", "p2")
	u.create(t, map[string]string{"team": "red"}, "r1", "r2", "r3")
	stop := u.mode(t, "redhat/openshift-ovs-multitenant")
	p1, p2 := u.vnid(t, "p1"), u.vnid(t, "p2")
	for _, name := range []string{"r1", "r2", "r3", "default"} {
		u.vnid(t, name)
	}

	u.wants(t, exitOK, fmt.Sprintf("namespace/p2 joined p1 (VNID %d)\n", p1), "", "join-projects", "--to=p1", "p2")
	if now := u.vnid(t, "p2"); now != p1 || now == p2 {
		t.Errorf("p2 has %d, and p1 %d", now, p1)
	}
	r1 := u.vnid(t, "r1")
	u.wants(t, exitOK, fmt.Sprintf("namespace/r2 joined r1 (VNID %d)\nnamespace/r3 joined r1 (VNID %d)\n", r1, r1), "", "join-projects", "--to=r1", "-l", "team=red")
	u.wants(t, exitOK, "namespace/p2 isolated (VNID ", "", "isolate-projects", "p2")
	if now := u.vnid(t, "p2"); now == p1 || now < 10 {
		t.Errorf("p2 has %d", now)
	}
	u.wants(t, exitOK, "namespace/r1 made global (VNID 0)\nnamespace/r2 made global (VNID 0)\nnamespace/r3 made global (VNID 0)\n", "",
		"make-projects-global", "--selector=team=red")
	u.wants(t, exitOK, "r1          0\nr2          0\n", "", "get-vnids", "r1", "r2")

	// A refusal has the controller's reason; the other namespaces are changed.
	u.wants(t, exitFailed, "namespace/r1 isolated (VNID ", "error: namespace default: isolate is refused: Namespace default has the API server's service, which all must reach",
		"isolate-projects", "default", "r1")
	// The same request is refused again, and its annotations stop no other change.
	u.wants(t, exitFailed, "", "isolate is refused: Namespace default has the API server's service", "isolate-projects", "default")
	u.wants(t, exitOK, "namespace/default made global (VNID 0)\n", "", "make-projects-global", "default")
	// Invalid before any request.
	before := u.vnid(t, "p1")
	u.wants(t, exitFailed, "", `namespaces "nowhere" not found`, "join-projects", "--to=nowhere", "p1")
	u.wants(t, exitFailed, "", `namespaces "nowhere" not found`, "make-projects-global", "p1", "nowhere")
	u.wants(t, exitFailed, "", "no namespace has labels that match team=none", "isolate-projects", "-l", "team=none")
	if now := u.vnid(t, "p1"); now != before {
		t.Errorf("p1 has %d", now)
	}
	stop()

	// No controller answers.
	// The timeout includes the requests.
	u.wants(t, exitFailed, "", "ovsdn-controller did not answer within 5s; the request remains", "isolate-projects", "p1", "--timeout=5s")

	stop = u.mode(t, "subnet")
	defer stop()
	eventually(t, func() error {
		if _, _, errOut := u.types(t, "isolate-projects", "p1"); strings.Contains(errOut, "is not accepted by ovsdn-controller yet") {
			return errors.New(errOut)
		}
		return nil
	})
	u.wants(t, exitFailed, "", "the cluster's network is in mode subnet (redhat/openshift-ovs-subnet): networks of namespaces can be changed only in mode multitenant", "isolate-projects", "p1")
}

func TestRun_invalidCommandLines(t *testing.T) {
	u := &user{kubeconfig: "/nonexistent"}
	for _, tc := range []struct {
		args []string
		err  string
	}{
		{[]string{"leave"}, `unknown command "leave"`},
		{[]string{"isolate-projects"}, "specify either namespaces or --selector"},
		{[]string{"isolate-projects", "a", "-l", "b=c"}, "specify either namespaces or --selector"},
		{[]string{"join-projects", "a"}, "no namespace to join; add --to=NAMESPACE"},
		{[]string{"join-projects", "--to=A", "a"}, `--to: "join:A" names no namespace`},
		{[]string{"isolate-projects", "--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"get-vnids", "-o", "nonsense"}, `unable to match a printer suitable for the output format "nonsense"`},
	} {
		code, out, errOut := u.types(t, tc.args...)
		if code != exitUsage || out != "" || !strings.Contains(errOut, tc.err) || !strings.Contains(errOut, "See 'kubectl ovsdn") {
			t.Errorf("%v: exit code %d\n%s%s", tc.args, code, out, errOut)
		}
	}
	if code, out, _ := u.types(t, "--help"); code != exitOK || !strings.Contains(out, "kubectl ovsdn join-projects") && !strings.Contains(out, "join-projects") {
		t.Errorf("--help: exit code %d\n%s", code, out)
	}
}

func TestRefusal(t *testing.T) {
	const request, reason = "pod.network.openshift.io/multitenant.change-network", "ovsdn.io/change-refused"
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        string
	}{
		"made":                        {nil, ""},
		"refused":                     {map[string]string{request: "refused:isolate", reason: "no"}, "no"},
		"refused by an old version":   {map[string]string{reason: "no"}, "no"},
		"refused, the reason removed": {map[string]string{request: "refused:isolate"}, "refused the change, and the reason was removed"},
	} {
		got := errorText(refusal(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}))
		if !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
