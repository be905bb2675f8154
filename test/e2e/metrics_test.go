package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// metricsPort is that of agents.
const metricsPort = 9447

// testMetrics scrapes each node's agent with a token that has the right. A pod without a token, and one with the token of its own account, get no metrics.
func testMetrics(t *testing.T, x *trio) {
	const reader = "reader"
	tokenOf := func(account string) string {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{}}
		got, err := x.Kube.CoreV1().ServiceAccounts(x.namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status.Token
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: reader}}
	if _, err := x.Kube.CoreV1().ServiceAccounts(x.namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-" + x.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ovsdn-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: x.namespace, Name: reader}},
	}
	if _, err := x.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := x.Kube.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	token := tokenOf(reader)
	for _, node := range []machine{x.node1, x.node2} {
		addr := x.Addr(t, node.Name)
		await.OK(t, fixture.SyncTime, func(ctx context.Context) error { // until the API server knows the binding, and the agent has seen the pods
			status, body, err := scrapeMetrics(ctx, x.outside.NetNS, addr, token)
			if err != nil {
				return fmt.Errorf("%s: %w", node.Name, err)
			}
			if status != http.StatusOK {
				return fmt.Errorf("%s: got status %d, want 200", node.Name, status)
			}
			return hasPods(body, 1)
		})
		for _, c := range []struct {
			token  string
			status int
		}{{"", http.StatusUnauthorized}, {tokenOf("default"), http.StatusForbidden}} {
			status, _, err := scrapeMetrics(t.Context(), x.a.NetNS, addr, c.token)
			if err != nil || status != c.status {
				t.Errorf("%s by a pod: got status %d, error %v, want %d", node.Name, status, err, c.status)
			}
		}
	}
}

// hasPods fails unless the metrics count at least that many pods.
func hasPods(metrics string, want int) error {
	m := regexp.MustCompile(`(?m)^ovsdn_pods (\d+)$`).FindStringSubmatch(metrics)
	if m == nil {
		return fmt.Errorf("got %d bytes without ovsdn_pods", len(metrics))
	}
	got, err := strconv.Atoi(m[1])
	if err == nil && got < want {
		return fmt.Errorf("got %d pods, want at least %d", got, want)
	}
	return err
}

// scrapeMetrics gets the metrics of an agent from a network namespace, without a token if that is empty.
func scrapeMetrics(ctx context.Context, from wire.NetNS, node netip.Addr, token string) (status int, body string, err error) {
	return getFromAgent(ctx, from, node, "/metrics", token)
}

// getFromAgent gets a path of an agent from a network namespace, without a token if that is empty.
func getFromAgent(ctx context.Context, from wire.NetNS, node netip.Addr, path, token string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+netip.AddrPortFrom(node, metricsPort).String()+path, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: from.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // self-signed
	}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(content), err
}
