package deploy

import (
	"context"
	"net/netip"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
)

// Requests for the certificates of diagnostics.

const (
	controllerAuthority = certificates.ObjectName
	agentRequest        = "request-of-agent"
	kubeletRequest      = "request-of-kubelet"
)

// newRequest returns a request of the signer, edited if edit is not nil.
func newRequest(signer string, edit func(*certificatesv1.CertificateSigningRequest)) (*certificatesv1.CertificateSigningRequest, error) {
	content, _, err := certificates.NewRequest("node1", netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		return nil, err
	}
	o := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: content, SignerName: signer, Usages: certificates.AgentUsages()},
	}
	if edit != nil {
		edit(o)
	}
	return o, nil
}

// addCertificateObjects creates a request of an agent and one of kubelet, and an APIService.
func (c *cluster) addCertificateObjects(t *testing.T) {
	t.Helper()
	for name, signer := range map[string]string{agentRequest: certificates.SignerName, kubeletRequest: certificatesv1.KubeletServingSignerName} {
		o, err := newRequest(signer, nil)
		must(t, err)
		o.Name = name
		_, err = c.admin.kube.CertificatesV1().CertificateSigningRequests().Create(t.Context(), o, metav1.CreateOptions{})
		must(t, err)
	}
	must(t, c.admin.kube.CoreV1().RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").Body([]byte(`{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "`+certificates.APIService+`"},
		"spec": {"group": "diagnostics.ovsdn.io", "version": "v1alpha1", "groupPriorityMinimum": 100, "versionPriority": 10,
			"service": {"namespace": "ovsdn-system", "name": "ovsdn-controller-api"}}}`)).Do(t.Context()).Error())
}

func annotated(value string) func(*certificatesv1.CertificateSigningRequest) {
	return func(o *certificatesv1.CertificateSigningRequest) { o.Annotations = map[string]string{"a": value} }
}

func withFinalizer(o *certificatesv1.CertificateSigningRequest) {
	o.Finalizers = []string{"example.com/a"}
}

func withOwner(o *certificatesv1.CertificateSigningRequest) {
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "1"}}
}

func requestCertificate(signer string, edit func(*certificatesv1.CertificateSigningRequest)) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		o, err := newRequest(signer, edit)
		if err != nil {
			return err
		}
		_, err = client.kube.CertificatesV1().CertificateSigningRequests().Create(ctx, o, metav1.CreateOptions{})
		return err
	}
}

func approve(name string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		requests := client.kube.CertificatesV1().CertificateSigningRequests()
		o, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		o.Status.Conditions = append(o.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
		})
		_, err = requests.UpdateApproval(ctx, name, o, metav1.UpdateOptions{})
		return err
	}
}

func approveCertificate(ctx context.Context, client as) error {
	return approve(agentRequest)(ctx, client)
}
func approveKubelet(ctx context.Context, client as) error {
	return approve(kubeletRequest)(ctx, client)
}

func readAuthority(ctx context.Context, client as) error {
	_, err := client.kube.CoreV1().ConfigMaps(system).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + controllerAuthority})
	return err
}

func readAuthorityKey(ctx context.Context, client as) error {
	_, err := client.kube.CoreV1().Secrets(system).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + controllerAuthority})
	return err
}

func readFrontProxy(ctx context.Context, client as) error {
	_, err := client.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func createSecret(name string, kind corev1.SecretType) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind}
		switch kind {
		case corev1.SecretTypeTLS:
			o.Data = map[string][]byte{corev1.TLSCertKey: {}, corev1.TLSPrivateKeyKey: {}}
		case corev1.SecretTypeServiceAccountToken:
			o.Annotations = map[string]string{corev1.ServiceAccountNameKey: "ovsdn-node"}
		}
		_, err := client.kube.CoreV1().Secrets(system).Create(ctx, o, metav1.CreateOptions{})
		return err
	}
}

func writeConfigMap(name, verb string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		var err error
		if verb == "create" {
			_, err = client.kube.CoreV1().ConfigMaps(system).Create(ctx, o, metav1.CreateOptions{})
		} else {
			_, err = client.kube.CoreV1().ConfigMaps(system).Update(ctx, o, metav1.UpdateOptions{})
		}
		return err
	}
}

func patchAPIService(name string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		return client.kube.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/apiregistration.k8s.io/v1/apiservices", name).
			Body([]byte(`{"spec":{"caBundle":null}}`)).Do(ctx).Error()
	}
}
