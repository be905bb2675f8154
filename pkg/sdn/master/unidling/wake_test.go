package unidling

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// patchedTo is a client whose patches result in a version.
type patchedTo struct {
	metadata.ResourceInterface
	version string
}

func (p patchedTo) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: p.version}}, nil
}

// What the controller writes is no change of a user, after which it would try failed objects again.
func TestWrite_version(t *testing.T) {
	object := func() *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "7"}}
	}
	objects := []idled{{client: patchedTo{version: "8"}, object: object()}, {client: patchedTo{version: "9"}, object: object()}}
	if err := write(t.Context(), objects, map[string]any{"key": nil}); err != nil {
		t.Fatal(err)
	}
	if got := version(objects); got != "8/9" {
		t.Errorf("got version %s, want 8/9", got)
	}
}
