package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

const (
	changeAnnotation   = "pod.network.openshift.io/multitenant.change-network"
	assignedAnnotation = "ovsdn.io/assigned-netid"
	refusedAnnotation  = "ovsdn.io/change-refused"
)

// newTenants starts an API server with NetNamespaces that are older than the admission policies, and waits until the policies are active.
func newTenants(t *testing.T) (admin as, config *rest.Config) {
	t.Helper()
	config = apitest.Start(t)
	admin = clients(t, config)
	for name, change := range map[string]string{"default": "refused:isolate", "old": "nonsense", "probe": "global"} {
		_, err := admin.network.NetworkV1().NetNamespaces().Create(t.Context(), &networkv1.NetNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{changeAnnotation: change, assignedAnnotation: "0"}}, NetName: name,
		}, metav1.CreateOptions{})
		must(t, err)
	}
	root, err := checkout.Root(".")
	must(t, err)
	for _, folder := range []string{"rbac", "admission"} {
		must(t, controlplane.Apply(t.Context(), config, os.DirFS(filepath.Join(root, "deploy", folder))))
	}
	tries := 0
	await.OK(t, admissionPatience, func(ctx context.Context) error {
		tries++ // one that was let through before is no new request
		if err := annotate("probe", changeAnnotation, fmt.Sprint("nonsense", tries))(ctx, admin); !apierrors.IsInvalid(err) {
			return fmt.Errorf("it is not refused, but %s", fmt.Sprint(err))
		}
		return nil
	})
	return admin, config
}

// annotate sets an annotation of a NetNamespace; "-" removes it.
func annotate(name, key, value string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		nn, err := client.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if metav1.SetMetaDataAnnotation(&nn.ObjectMeta, key, value); value == "-" {
			delete(nn.Annotations, key)
		}
		_, err = client.network.NetworkV1().NetNamespaces().Update(ctx, nn, metav1.UpdateOptions{})
		return err
	}
}

// TestNetNamespaceAdmission uses one API server for all subtests.
func TestNetNamespaceAdmission(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	admin, config := newTenants(t)
	for _, tc := range []struct {
		name string
		test func(*testing.T, as, *rest.Config)
	}{
		{"an old invalid request stops no other update", testOldRequest},
		{"invalid requests are refused", testInvalidRequests},
		{"the record is the controller's to write", testRecordIsProtected},
		{"changes are refused outside of mode multitenant", testModes},
		{"oc reports refused changes", testOc},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, admin, config) })
	}
}

func testInvalidRequests(t *testing.T, admin as, config *rest.Config) {
	controller := clients(t, apitest.AsServiceAccount(config, system, "ovsdn-controller"))
	for _, value := range []string{"", ":", "join", "join:", "join:Red", "join:a:b", "join:" + strings.Repeat("a", 64), "leave", "isolate:red", "global ", "Refused:isolate", strings.Repeat("x", 10_000)} {
		if err := annotate("default", changeAnnotation, value)(t.Context(), admin); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "is not a change of a network") {
			t.Errorf("%.20q: got %v, want it refused", value, err)
		}
	}
	for _, value := range []string{"isolate", "isolate:"} {
		if err := annotate("default", changeAnnotation, value)(t.Context(), admin); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "which all must reach") {
			t.Errorf("%q of default: got %v, want it refused", value, err)
		}
	}
	for _, value := range []string{"global", "global:", "isolate", "isolate:", "join:red", "join:" + strings.Repeat("a", 63), "join:0-9"} {
		must(t, annotate("old", changeAnnotation, value)(t.Context(), admin))
		must(t, annotate("old", changeAnnotation, "refused:"+value)(t.Context(), controller))
	}
	must(t, annotate("old", changeAnnotation, "refused:nonsense")(t.Context(), controller))
	create := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "new", Annotations: map[string]string{changeAnnotation: "nonsense"}}, NetName: "new"}
	if _, err := admin.network.NetworkV1().NetNamespaces().Create(t.Context(), create, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("created with an invalid request: got %v, want it refused", err)
	}
}

// An invalid request that is older than the policies stops no other update of the object, and can be removed.
func testOldRequest(t *testing.T, admin as, config *rest.Config) {
	controller := clients(t, apitest.AsServiceAccount(config, system, "ovsdn-controller"))
	for _, name := range []string{"old", "default"} {
		must(t, annotate(name, networkv1.MulticastEnabledAnnotation, "true")(t.Context(), admin))
	}
	must(t, annotate("old", changeAnnotation, "refused:nonsense")(t.Context(), controller))
	must(t, annotate("old", changeAnnotation, "-")(t.Context(), admin))
	must(t, annotate("default", changeAnnotation, "-")(t.Context(), admin))
}

func testRecordIsProtected(t *testing.T, admin as, config *rest.Config) {
	controller := clients(t, apitest.AsServiceAccount(config, system, "ovsdn-controller"))
	if err := annotate("old", assignedAnnotation, "42")(t.Context(), admin); !apierrors.IsForbidden(err) {
		t.Errorf("changed: got %v, want it refused", err)
	}
	must(t, annotate("old", assignedAnnotation, "42")(t.Context(), controller))
	must(t, annotate("old", assignedAnnotation, "-")(t.Context(), admin))
	if err := annotate("old", assignedAnnotation, "0")(t.Context(), admin); !apierrors.IsForbidden(err) {
		t.Errorf("added: got %v, want it refused", err)
	}
}

func testModes(t *testing.T, admin as, _ *rest.Config) {
	object := networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: "default"},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}}, ServiceNetwork: "172.30.0.0/16",
	}
	stored, err := admin.network.NetworkV1().ClusterNetworks().Create(t.Context(), &object, metav1.CreateOptions{})
	must(t, err)
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy, config.ModeMultitenant} {
		object.PluginName, stored.PluginName = mode.PluginName(), mode.PluginName()
		network, err := config.ParseNetwork(&object)
		must(t, err)
		accepted, err := network.Accepted()
		must(t, err)
		metav1.SetMetaDataAnnotation(&stored.ObjectMeta, config.AcceptedAnnotation, accepted)
		stored, err = admin.network.NetworkV1().ClusterNetworks().Update(t.Context(), stored, metav1.UpdateOptions{})
		must(t, err)
		await.OK(t, admissionPatience, func(ctx context.Context) error {
			defer func() { must(t, annotate("old", changeAnnotation, "-")(ctx, admin)) }()
			err := annotate("old", changeAnnotation, "global")(ctx, admin)
			if made := err == nil; made != (mode == config.ModeMultitenant) || !made && !strings.Contains(err.Error(), "in mode multitenant") {
				return fmt.Errorf("mode %s: got %w", mode, err)
			}
			return nil
		})
		must(t, annotate("old", changeAnnotation, "refused:global")(t.Context(), admin))
		must(t, annotate("old", networkv1.MulticastEnabledAnnotation, mode.String())(t.Context(), admin))
	}
}

var errOcTimedOut = errors.New("timed out waiting for the condition")

// oc does what `oc adm pod-network` does: it writes the request, and polls until the annotation is removed. It calls pause in place of its
// pauses, and returns their sum.
func oc(ctx context.Context, user as, name, change string, pause func()) (took time.Duration, err error) {
	client := user.network.NetworkV1().NetNamespaces()
	nn, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	metav1.SetMetaDataAnnotation(&nn.ObjectMeta, changeAnnotation, change)
	if _, err := client.Update(ctx, nn, metav1.UpdateOptions{}); err != nil {
		return 0, err
	}
	backoff := wait.Backoff{Steps: 15, Duration: 500 * time.Millisecond, Factor: 1.1}
	for {
		if nn, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return took, err
		}
		if _, asked := nn.Annotations[changeAnnotation]; !asked {
			return took, nil
		}
		if backoff.Steps == 1 {
			return took, errOcTimedOut
		}
		took += backoff.Step()
		pause()
	}
}

// The controller runs with its own rights, under the policies. It decides in oc's first pause; the other pauses take no time.
func testOc(t *testing.T, admin as, config *rest.Config) {
	for _, name := range []string{"old", "red", "green"} {
		_, err := admin.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		must(t, err)
	}
	startController(t, config)
	answered := func(name, change string) func() {
		return func() {
			await.OK(t, admissionPatience, func(ctx context.Context) error {
				nn, err := admin.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
				if err == nil && nn.Annotations[changeAnnotation] == change {
					return fmt.Errorf("%s of %s has no answer", change, name)
				}
				return err
			})
		}
	}
	for _, name := range []string{"old", "red", "green"} {
		await.OK(t, admissionPatience, func(ctx context.Context) error {
			nn, err := admin.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
			if err == nil && nn.Annotations["ovsdn.io/namespace-uid"] == "" {
				return fmt.Errorf("%s is not taken over", name)
			}
			return err
		})
	}
	for range 2 { // the second is another write, and is validated again
		for _, tc := range []struct{ name, change, reason string }{
			{"red", "join:nowhere", "there is no Namespace nowhere"},
			{"default", "join:green", "which all must reach"},
		} {
			took, err := oc(t.Context(), admin, tc.name, tc.change, answered(tc.name, tc.change))
			if !errors.Is(err, errOcTimedOut) || took.Round(time.Second) != 14*time.Second {
				t.Errorf("%s of %s: got %v after %v, want oc's own error after 14s", tc.change, tc.name, err, took)
			}
			nn, err := admin.network.NetworkV1().NetNamespaces().Get(t.Context(), tc.name, metav1.GetOptions{})
			must(t, err)
			if nn.Annotations[changeAnnotation] != "refused:"+tc.change || !strings.Contains(nn.Annotations[refusedAnnotation], tc.reason) {
				t.Errorf("%s of %s: got %v", tc.change, tc.name, nn.Annotations)
			}
		}
	}
	if took, err := oc(t.Context(), admin, "red", "leave", answered("red", "leave")); !apierrors.IsInvalid(err) || took > 0 {
		t.Errorf("invalid request: got %v after %v, want it refused at once", err, took)
	}
	for _, change := range []string{"join:green", "isolate", "global"} {
		if took, err := oc(t.Context(), admin, "red", change, answered("red", change)); err != nil || took > time.Second {
			t.Errorf("%s: got %v after %v, want it made", change, err, took)
		}
	}
	nn, err := admin.network.NetworkV1().NetNamespaces().Get(t.Context(), "red", metav1.GetOptions{})
	must(t, err)
	if _, refused := nn.Annotations[refusedAnnotation]; refused || nn.NetID != 0 {
		t.Errorf("after a change that was made: got %+v", nn)
	}
}

// startController runs the controller with the rights of its account until the test ends.
func startController(t *testing.T, config *rest.Config) {
	t.Helper()
	cfg := master.Defaults()
	cfg.REST, cfg.LeaderElect, cfg.HealthzAddress, cfg.Mode = apitest.AsServiceAccount(config, system, "ovsdn-controller"), false, "0", "multitenant"
	cfg.Metrics.Address = "0"
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- master.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
}
