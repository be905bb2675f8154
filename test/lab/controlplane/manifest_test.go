package controlplane

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecode(t *testing.T) {
	objects, err := decode([]byte(`# a comment
apiVersion: v1
kind: Namespace
metadata: {name: one}
---
---
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: two, namespace: one}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, o.GetKind()+" "+o.GetName())
	}
	if diff := cmp.Diff([]string{"Namespace one", "ServiceAccount two"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := decode([]byte("a: [")); err == nil {
		t.Error("half a document was decoded")
	}
}
