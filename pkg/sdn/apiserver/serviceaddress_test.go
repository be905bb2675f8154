package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Without an answer from the address of service kubernetes, errors name the setting. Their causes remain visible to clients.
func TestNameSetting(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	config := &rest.Config{Host: server.URL}
	config.Wrap(nameSetting)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Discovery().ServerVersion()
	if err == nil || !strings.Contains(err.Error(), "set kube-apiserver in network.env, --kube-apiserver,") {
		t.Errorf("got %v, want an error with the setting", err)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) || !utilnet.IsConnectionRefused(err) {
		t.Errorf("got %v, want a refused connection", err)
	}
}

// failing fails all requests.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func TestNameSetting_otherErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		err            error
		named, timeout bool
	}{
		"timeout of a connection": {&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true, true},
		"no route":                {&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, true, false},
		"connection ends":         {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false, false},
		"packets are dropped":     {context.DeadlineExceeded, true, true},
		"end of the program":      {context.Canceled, false, false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://172.30.0.1/api", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := nameSetting(failing{tc.err}).RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, tc.err) || strings.Contains(err.Error(), "kube-apiserver") != tc.named {
			t.Errorf("%s: got %v, want the setting: %t", name, err, tc.named)
		}
		if got := (&url.Error{Op: "Get", Err: err}).Timeout(); got != tc.timeout {
			t.Errorf("%s: got a timeout: %t, want %t", name, got, tc.timeout)
		}
	}
}
