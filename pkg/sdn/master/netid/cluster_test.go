package netid

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

const timeout = 90 * time.Second // a loaded machine is slow

// cluster is a real API server without other controllers.
type cluster struct {
	admin   *rest.Config
	kube    kubernetes.Interface
	network networkclient.Interface
	terms   int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{admin: apitest.Start(t)}
	c.kube, c.network = apitest.Clients(t, c.admin)
	return c
}

// events records Events as "Type Reason name: message".
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(about any, typ, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fmt.Sprintf("%s %s %s: %s", typ, reason, about.(metav1.Object).GetName(), message))
}

func (e *events) await(t *testing.T, part string) {
	t.Helper()
	eventually(t, func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, line := range e.list {
			if strings.Contains(line, part) {
				return nil
			}
		}
		return fmt.Errorf("got Events %q, want one with %q", e.list, part)
	})
}

// warnings returns the Warnings that contain part.
func (e *events) warnings(part string) (list []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, line := range e.list {
		if strings.HasPrefix(line, "Warning") && strings.Contains(line, part) {
			list = append(list, line)
		}
	}
	return list
}

// none fails the test if a Warning contains part.
func (e *events) none(t *testing.T, part string) {
	t.Helper()
	for _, line := range e.warnings(part) {
		t.Error(line)
	}
}

// leader is a running controller with its Events.
type leader struct {
	*Controller
	events
	stop func()
}

// lead starts a controller until the end of the test, which fails if a goroutine leaks.
func (c *cluster) lead(t *testing.T, mode config.Mode) *leader {
	t.Helper()
	before := goleak.IgnoreCurrent()
	l := &leader{}
	restConfig := rest.CopyConfig(c.admin)
	restConfig.QPS = -1
	clients := Clients{Events: recorder{&l.events}}
	clients.Kube, clients.Network = apitest.Clients(t, restConfig)
	kube := informers.NewSharedInformerFactory(clients.Kube, 0)
	ours := networkinformers.NewSharedInformerFactory(clients.Network, 0)
	c.terms++
	var err error
	l.Controller, err = New(clients, kube.Core().V1().Namespaces(), ours.Network().V1().NetNamespaces(),
		[]string{"default", "kube-system"}, c.terms)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kube.Start(ctx.Done())
	ours.Start(ctx.Done())
	if err := l.Load(ctx); err != nil {
		t.Fatal(err)
	}
	l.SetMode(ctx, mode)
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx, 8) })
	l.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		kube.Shutdown()
		ours.Shutdown()
		// Disconnect closes idle connections, and that of a watch becomes idle only after the watch has ended.
		eventually(t, func(context.Context) error {
			apitest.Disconnect(clients.Kube, clients.Network)
			apitest.Disconnect(c.kube, c.network)
			return goleak.Find(before)
		})
	})
	t.Cleanup(l.stop)
	return l
}

func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	await.OK(t, timeout, check)
}

func (c *cluster) create(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// delete deletes a Namespace with its finalizers, as kube-controller-manager's namespace controller does.
func (c *cluster) delete(t *testing.T, name string) {
	t.Helper()
	ctx := t.Context()
	if err := c.kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		ns, err := c.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		ns.Spec.Finalizers = nil
		if _, err := c.kube.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// await waits until the check of the NetNamespace succeeds.
func (c *cluster) await(t *testing.T, name string, check func(*networkv1.NetNamespace) error) *networkv1.NetNamespace {
	t.Helper()
	var nn *networkv1.NetNamespace
	eventually(t, func(ctx context.Context) (err error) {
		if nn, err = c.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if check == nil {
			return nil
		}
		return check(nn)
	})
	return nn
}

// awaitDeleted waits until the NetNamespace is deleted.
func (c *cluster) awaitDeleted(t *testing.T, name string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		nn, err := c.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("got NetNamespace %+v, %w, want it deleted", nn, err)
	})
}

// vnid waits for the NetNamespace and returns its VNID.
func (c *cluster) vnid(t *testing.T, name string) uint32 {
	t.Helper()
	return c.await(t, name, nil).NetID
}

// edit changes a NetNamespace.
func (c *cluster) edit(t *testing.T, name string, change func(*networkv1.NetNamespace)) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		nn, err := c.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(nn)
		_, err = c.network.NetworkV1().NetNamespaces().Update(ctx, nn, metav1.UpdateOptions{})
		return err
	})
}

// request requests a change and waits until the annotation is removed or marked as refused. It must not be removed if the change is refused,
// since oc interprets that as success.
func (c *cluster) request(t *testing.T, name, change string) *networkv1.NetNamespace {
	t.Helper()
	c.edit(t, name, func(nn *networkv1.NetNamespace) {
		metav1.SetMetaDataAnnotation(&nn.ObjectMeta, "pod.network.openshift.io/multitenant.change-network", change)
	})
	return c.await(t, name, func(nn *networkv1.NetNamespace) error {
		value, exists := nn.Annotations["pod.network.openshift.io/multitenant.change-network"]
		_, refused := nn.Annotations["ovsdn.io/change-refused"]
		if exists && (!refused || value != "refused:"+change) {
			return fmt.Errorf("got annotation %s of %s, want it removed or refused", value, name)
		}
		if !exists && refused {
			t.Errorf("%s of %s: got no annotation, want it marked as refused", change, name)
		}
		return nil
	})
}

// recorder is a record.EventRecorder that adds to events synchronously.
type recorder struct{ *events }

func (r recorder) Event(about runtime.Object, typ, reason, message string) {
	r.add(about, typ, reason, message)
}

func (r recorder) Eventf(about runtime.Object, typ, reason, format string, args ...any) {
	r.add(about, typ, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(about runtime.Object, _ map[string]string, typ, reason, format string, args ...any) {
	r.Eventf(about, typ, reason, format, args...)
}

func (r recorder) WithLogger(klog.Logger) record.EventRecorderLogger { return r }

// all returns the NetNamespaces.
func (c *cluster) all(t *testing.T) map[string]networkv1.NetNamespace {
	t.Helper()
	list, err := c.network.NetworkV1().NetNamespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]networkv1.NetNamespace{}
	for _, nn := range list.Items {
		byName[nn.Name] = nn
	}
	return byName
}
