// Package apitest gives a Go test a real API server: etcd and kube-apiserver on the loopback interface, with this
// project's own kinds. There is no controller manager, so nothing deletes objects with their owners, makes
// service accounts or runs pods. It takes some seconds: start one for a test function and use many namespaces in it.
package apitest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/components"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// Start returns the configuration of an administrator's client, not throttled. The API server ends with the test.
// The first call on a machine builds Kubernetes, which takes minutes. The test fails when anything does.
func Start(tb testing.TB) *rest.Config {
	tb.Helper()
	return StartControlPlane(tb).RESTConfig()
}

// StartControlPlane is Start for tests that need more than an administrator.
func StartControlPlane(tb testing.TB) *controlplane.ControlPlane {
	tb.Helper()
	root, err := checkout.Root(".")
	if err != nil {
		tb.Fatal(err)
	}
	set, err := components.Build(tb.Context(), components.Options{SourceDir: root, Progress: tb.Logf})
	if err != nil {
		tb.Fatalf("build Kubernetes: %v", err)
	}
	// Not tb.TempDir, whose long path may not fit into the address of a unix socket.
	dir, err := os.MkdirTemp("", "apitest")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove what the API server wrote: %v", err)
		}
	})
	cp, err := controlplane.Start(tb.Context(), controlplane.Config{Kube: set.Kube, Dir: dir})
	if err != nil {
		tb.Fatalf("start an API server: %v", err)
	}
	tb.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			tb.Errorf("stop the API server: %v", err)
		}
	})
	if err := applyCRDs(tb.Context(), cp.RESTConfig(), root); err != nil {
		tb.Fatal(err)
	}
	return cp
}

func applyCRDs(ctx context.Context, config *rest.Config, root string) error {
	if err := controlplane.Apply(ctx, config, os.DirFS(filepath.Join(root, "deploy", "crds"))); err != nil {
		return err
	}
	return backdateCRDs(ctx, config)
}

// backdateCRDs dates the condition Established of all CRDs an hour back. In the first 2 s after it, kube-apiserver delays the creation of each object of the kind
// by 2 s, for other API servers that do not know the kind yet.
func backdateCRDs(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	list, err := crds.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list CRDs: %w", err)
	}
	established := map[string]any{"type": "Established", "status": "True", "lastTransitionTime": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}
	for _, crd := range list.Items {
		status := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{established}}}}
		status.SetGroupVersionKind(crd.GroupVersionKind())
		status.SetName(crd.GetName())
		if _, err := crds.ApplyStatus(ctx, crd.GetName(), status, metav1.ApplyOptions{FieldManager: "apitest", Force: true}); err != nil {
			return fmt.Errorf("set the status of CRD %s: %w", crd.GetName(), err)
		}
	}
	return nil
}
