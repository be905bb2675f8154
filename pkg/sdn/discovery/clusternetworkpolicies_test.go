package discovery

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// The CRD is deleted from and created in a real API server.
func TestHasClusterNetworkPolicies(t *testing.T) {
	admin := apitest.Start(t)
	client, err := policyclient.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	crds, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	want := func(want bool) {
		t.Helper()
		await.OK(t, 90*time.Second, func(ctx context.Context) error {
			has, err := HasClusterNetworkPolicies(ctx, client)
			if err == nil && has != want {
				err = fmt.Errorf("got %t, want %t", has, want)
			}
			return err
		})
	}
	want(true)
	kind := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if err := crds.Resource(kind).Delete(t.Context(), "clusternetworkpolicies.policy.networking.k8s.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want(false)
	root, err := checkout.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	if err := controlplane.Apply(t.Context(), admin, os.DirFS(filepath.Join(root, "deploy", "crds"))); err != nil {
		t.Fatal(err)
	}
	want(true)

	anonymous := rest.AnonymousClientConfig(admin)
	if client, err = policyclient.NewForConfig(anonymous); err != nil {
		t.Fatal(err)
	}
	if has, err := HasClusterNetworkPolicies(t.Context(), client); has || err == nil {
		t.Errorf("without permission: got %t, %v, want an error", has, err)
	}
}

func TestAwaitClusterNetworkPolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []error // in this order, the last repeatedly
		want    time.Duration
		end     time.Duration // of the context
	}{
		"exists":                          {answers: []error{nil}, end: time.Hour},
		"created later":                   {answers: []error{missing(), missing(), nil}, want: 2 * time.Minute, end: time.Hour},
		"API server unavailable":          {answers: []error{unavailable(), unavailable(), nil}, want: 3 * time.Second, end: time.Hour},
		"API server unavailable for long": {answers: slices.Concat(slices.Repeat([]error{unavailable()}, 8), []error{nil}), want: 183 * time.Second, end: time.Hour},
		"never created, context ends":     {answers: []error{missing()}, want: 90 * time.Second, end: 90 * time.Second},
		"never available, context ends":   {answers: []error{unavailable()}, want: 90 * time.Second, end: 90 * time.Second},
		"context ends before the request": {answers: []error{missing()}},
		"created after the context's end": {answers: []error{missing(), nil}, want: 30 * time.Second, end: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := policyfake.NewSimpleClientset()
				requests := 0
				client.PrependReactor("list", "clusternetworkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
					err := tc.answers[min(requests, len(tc.answers)-1)]
					requests++
					return err != nil, nil, err
				})
				ctx, cancel := context.WithTimeout(t.Context(), tc.end)
				defer cancel()
				start := time.Now()
				err := AwaitClusterNetworkPolicies(ctx, client)
				if took := time.Since(start); took != tc.want || (err != nil) != (tc.want == tc.end) {
					t.Errorf("got %v after %v, want %v", err, took, tc.want)
				}
			})
		})
	}
}

func missing() error {
	return apierrors.NewNotFound(policyv1alpha2.Resource("clusternetworkpolicies"), "")
}

func unavailable() error {
	return apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "list", schema.GroupResource{}, "", "", 0, true)
}
