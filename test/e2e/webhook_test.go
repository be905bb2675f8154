package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab/pki"
)

// The service of testAPIServerClients, and the port of its endpoints.
const (
	extensionService = "extension"
	extensionPort    = 8443
)

// The API group of testAPIServerClients.
const (
	extensionGroup   = "e2e.ovsdn.io"
	extensionVersion = "v1alpha1"
	extensionPath    = "/apis/" + extensionGroup + "/" + extensionVersion
)

// testAPIServerClients: the API server reaches both endpoints of a service as a webhook and as an aggregated API.
func testAPIServerClients(t *testing.T, x *trio) {
	authority, err := pki.New(extensionGroup)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []pod{x.b, x.c} {
		x.serveExtension(t, authority, p)
	}
	x.Expose(t, x.namespace, extensionService, servicePort{Protocol: corev1.ProtocolTCP, Port: 443, Target: extensionPort}, x.b, x.c)
	t.Run("webhook", func(t *testing.T) { testWebhook(t, x, authority.Pair.Cert) })
	t.Run("aggregated API", func(t *testing.T) { testAggregatedAPI(t, x, authority.Pair.Cert) })
}

// testBalancedAPIServerClients is testAPIServerClients in a lab whose API server connects to cluster IPs: the switch of the node from whose network it connects
// translates these.
func testBalancedAPIServerClients(t *testing.T, x *trio) {
	testAPIServerClients(t, x)
	for _, p := range []pod{x.b, x.c} {
		flow := fmt.Sprintf("table=67,tcp,reg8=%#x,reg9=%#x", p.Addr.AsSlice(), extensionPort)
		fixture.Eventually(t, fixture.SyncTime, "packets of flow "+flow, func(ctx context.Context) error { // vswitchd reads the datapath's counters every half second
			flows, err := x.TryOutput(ctx, fixture.Node1, "ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br0", flow)
			if err == nil && (!strings.Contains(flows, "n_packets=") || strings.Contains(flows, "n_packets=0,")) {
				err = fmt.Errorf("got %q, want packets of the API server", flows)
			}
			return err
		})
	}
}

// serveExtension answers as a webhook and as an aggregated API on a pod, until the test ends. Each answer has the pod's name.
func (x *trio) serveExtension(t *testing.T, authority *pki.Authority, on pod) {
	t.Helper()
	name := extensionService + "." + x.namespace + ".svc"
	pair, err := authority.Issue(pki.Subject{CommonName: name, DNSNames: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := on.NetNS.Listen("tcp4", netip.AddrPortFrom(on.Addr, extensionPort).String())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", func(w http.ResponseWriter, r *http.Request) { mutate(w, r, on.Name) })
	// The client reports a lost answer.
	mux.HandleFunc("GET "+extensionPath+"/hostname", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, on.Name) })
	mux.HandleFunc("GET "+extensionPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: extensionGroup + "/" + extensionVersion, APIResources: []metav1.APIResource{},
		})
	})
	serve(t, l, &http.Server{
		Handler:   mux,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		// HTTP/2 would use one connection for all requests.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	})
}

// mutate admits a ConfigMap, and adds the endpoint's name to its data.
func mutate(w http.ResponseWriter, r *http.Request, endpoint string) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "want an AdmissionReview with a request", http.StatusBadRequest)
		return
	}
	patchType := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Allowed: true, PatchType: &patchType,
		Patch: fmt.Appendf(nil, `[{"op":"add","path":"/data","value":{"endpoint":%q}}]`, endpoint),
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client reports a lost answer
}

// testWebhook creates ConfigMaps by a dry run, which the webhook changes.
func testWebhook(t *testing.T, x *trio, authority []byte) {
	path, port, fail, none := "/mutate", int32(443), admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	configurations := x.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := configurations.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: x.namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "webhook." + extensionGroup,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service:  &admissionregistrationv1.ServiceReference{Namespace: x.namespace, Name: extensionService, Path: &path, Port: &port},
				CABundle: authority,
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: x.namespace}},
			FailurePolicy:           &fail,
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configurations.Delete(context.WithoutCancel(t.Context()), x.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	reachesBoth(t, func(ctx context.Context) (string, error) {
		created, err := x.Kube.CoreV1().ConfigMaps(x.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "changed"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return "", err
		}
		if created.Data["endpoint"] == "" {
			return "", errors.New("no webhook has changed the ConfigMap")
		}
		return created.Data["endpoint"], nil
	})
}

// testAggregatedAPI gets pages of an API group that the service serves.
func testAggregatedAPI(t *testing.T, x *trio, authority []byte) {
	const path = "/apis/apiregistration.k8s.io/v1/apiservices"
	name, client := extensionVersion+"."+extensionGroup, x.Kube.CoreV1().RESTClient()
	object, err := json.Marshal(map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": extensionGroup, "version": extensionVersion, "groupPriorityMinimum": 100, "versionPriority": 10, "caBundle": authority,
			"service": map[string]any{"namespace": x.namespace, "name": extensionService, "port": 443},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Post().AbsPath(path).Body(object).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the cluster deletes no namespace while an API group is not served
		if err := client.Delete().AbsPath(path, name).Do(context.WithoutCancel(t.Context())).Error(); err != nil {
			t.Error(err)
		}
	})
	reachesBoth(t, func(ctx context.Context) (string, error) {
		page, err := client.Get().AbsPath(extensionPath + "/hostname").DoRaw(ctx)
		return string(page), err
	})
}
