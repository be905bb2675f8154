package cniargs

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// code returns the code of a CNI error; 0 for another error.
func code(err error) uint {
	var e *types.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code
}

func TestParse(t *testing.T) {
	const usual = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0.x;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=1-2"
	for _, tt := range []struct {
		name, in string
		want     Args
		text     string // of the error
	}{
		{"usual", usual, Args{"default", "web-0.x", "1-2", "abc"}, ""},
		{"more than usual", usual + ";LATER=1", Args{"default", "web-0.x", "1-2", "abc"}, ""},
		{"empty pairs", ";" + usual + ";;", Args{"default", "web-0.x", "1-2", "abc"}, ""},
		{"least", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", Args{Namespace: "a", Name: "b"}, ""},
		{"value with =", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=x=y", Args{Namespace: "a", Name: "b", UID: "x=y"}, ""},
		{"empty", "", Args{}, "are required"},
		{"no name", "K8S_POD_NAMESPACE=a", Args{}, "are required"},
		{"no pair", "K8S_POD_NAMESPACE", Args{}, "not KEY=VALUE"},
		{"unknown", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;X=1", Args{}, `unknown keys ["X"]`},
		{"unknown not ignored", "IgnoreUnknown=0;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;X=1", Args{}, `unknown keys ["X"]`},
		{"absurd namespace", "K8S_POD_NAMESPACE=../a;K8S_POD_NAME=b", Args{}, "K8S_POD_NAMESPACE"},
		{"absurd name", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("b", 254), Args{}, "K8S_POD_NAME"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.in)
			if tt.text != "" {
				if code(err) != types.ErrInvalidEnvironmentVariables || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want error with %q", err, tt.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestArgsMatches(t *testing.T) {
	const hash, mirror = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
	for name, tc := range map[string]struct {
		uid         string
		annotations map[string]string
		want        bool
	}{
		"UID":                             {"1", nil, true},
		"no UID of the runtime":           {"", nil, true},
		"another UID":                     {"2", nil, false},
		"mirror":                          {"2", map[string]string{mirror: "2"}, true},
		"mirror with the hash":            {"2", map[string]string{mirror: "3", hash: "2"}, true},
		"hash of a pod that is no mirror": {"2", map[string]string{hash: "2"}, false},
		"mirror of another pod":           {"2", map[string]string{mirror: "3", hash: "3"}, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1", Annotations: tc.annotations}}
		if got := (Args{UID: tc.uid}).Matches(pod); got != tc.want {
			t.Errorf("%s: got %t, want %t", name, got, tc.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=1-2")
	f.Add("K8S_POD_NAMESPACE=;=;;K8S_POD_NAME==")
	f.Fuzz(func(t *testing.T, in string) {
		a, err := Parse(in)
		if err != nil {
			if code(err) != types.ErrInvalidEnvironmentVariables {
				t.Errorf("got code %d, want %d: %v", code(err), types.ErrInvalidEnvironmentVariables, err)
			}
			return
		}
		if a.Namespace == "" || a.Name == "" || strings.ContainsAny(a.Namespace+a.Name, "/ ;=\n") {
			t.Errorf("got invalid args %+v without an error", a)
		}
	})
}
