package pods

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

func TestParseArgs(t *testing.T) {
	const usual = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0.x;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=1-2"
	for _, tt := range []struct {
		name, in string
		want     kubeArgs
		text     string // of the error
	}{
		{"usual", usual, kubeArgs{"default", "web-0.x", "1-2", "abc"}, ""},
		{"more than usual", usual + ";LATER=1", kubeArgs{"default", "web-0.x", "1-2", "abc"}, ""},
		{"empty pairs", ";" + usual + ";;", kubeArgs{"default", "web-0.x", "1-2", "abc"}, ""},
		{"least", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", kubeArgs{namespace: "a", name: "b"}, ""},
		{"value with =", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=x=y", kubeArgs{namespace: "a", name: "b", uid: "x=y"}, ""},
		{"empty", "", kubeArgs{}, "are required"},
		{"no name", "K8S_POD_NAMESPACE=a", kubeArgs{}, "are required"},
		{"no pair", "K8S_POD_NAMESPACE", kubeArgs{}, "not KEY=VALUE"},
		{"unknown", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;X=1", kubeArgs{}, `unknown keys ["X"]`},
		{"unknown not ignored", "IgnoreUnknown=0;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;X=1", kubeArgs{}, `unknown keys ["X"]`},
		{"absurd namespace", "K8S_POD_NAMESPACE=../a;K8S_POD_NAME=b", kubeArgs{}, "K8S_POD_NAMESPACE"},
		{"absurd name", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("b", 254), kubeArgs{}, "K8S_POD_NAME"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseArgs(tt.in)
			if tt.text != "" {
				if code(err) != types.ErrInvalidEnvironmentVariables || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want error with %q", err, tt.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(kubeArgs{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=1-2")
	f.Add("K8S_POD_NAMESPACE=;=;;K8S_POD_NAME==")
	f.Fuzz(func(t *testing.T, in string) {
		a, err := parseArgs(in)
		if err != nil {
			if code(err) != types.ErrInvalidEnvironmentVariables {
				t.Errorf("got code %d, want %d: %v", code(err), types.ErrInvalidEnvironmentVariables, err)
			}
			return
		}
		if a.namespace == "" || a.name == "" || strings.ContainsAny(a.namespace+a.name, "/ ;=\n") {
			t.Errorf("got invalid args %+v without an error", a)
		}
	})
}
