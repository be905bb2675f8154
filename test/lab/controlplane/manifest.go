package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// establishTimeout bounds the wait for new kinds.
const establishTimeout = 30 * time.Second

// Apply puts every object of the folder's YAML files into the cluster by server-side apply, namespaces and new kinds
// first and else in the files' order, and waits until new kinds can be used. Kustomizations are passed over.
func Apply(ctx context.Context, config *rest.Config, folder fs.FS) error {
	files, err := fs.Glob(folder, "*.yaml")
	if err != nil {
		return fmt.Errorf("list the manifests: %w", err)
	}
	if len(files) == 0 {
		return errors.New("no manifest (*.yaml) in the folder")
	}
	var all []manifest
	for _, file := range files {
		content, err := fs.ReadFile(folder, file)
		if err != nil {
			return fmt.Errorf("read a manifest: %w", err)
		}
		manifests, err := decodeFile(file, content)
		if err != nil {
			return err
		}
		all = append(all, manifests...)
	}
	return applyAll(ctx, config, all)
}

// ApplyManifest is Apply of one manifest, whose name is for errors.
func ApplyManifest(ctx context.Context, config *rest.Config, name string, content []byte) error {
	all, err := decodeFile(name, content)
	if err != nil {
		return err
	}
	return applyAll(ctx, config, all)
}

func applyAll(ctx context.Context, config *rest.Config, all []manifest) error {
	applier, err := newApplier(config)
	if err != nil {
		return err
	}
	// Dependencies come first.
	for rank := range ranks {
		if err := applier.applyRank(ctx, rank, all); err != nil {
			return err
		}
	}
	return nil
}

// manifest is an object and the file that it comes from.
type manifest struct {
	file   string
	object *unstructured.Unstructured
}

// ranks is the number of values of rank.
const ranks = 2

func (m manifest) rank() int {
	switch m.object.GetKind() {
	case "Namespace", "CustomResourceDefinition":
		return 0
	default:
		return 1
	}
}

func decodeFile(file string, content []byte) ([]manifest, error) {
	objects, err := decode(content)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", file, err)
	}
	var all []manifest
	for _, object := range objects {
		all = append(all, manifest{file: file, object: object})
	}
	return all, nil
}

func decode(content []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(object.Object) == 0 || object.GroupVersionKind().Group == "kustomize.config.k8s.io":
		default:
			objects = append(objects, object)
		}
	}
}

type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(config *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))}, nil
}

// applyRank applies the manifests of that rank. Waiting after all have been applied, for kinds that the API server establishes in the meantime, takes less time
// than after each.
func (a *applier) applyRank(ctx context.Context, rank int, all []manifest) error {
	for _, do := range []struct {
		name string
		call func(context.Context, *unstructured.Unstructured) error
	}{{"apply", a.apply}, {"wait for", a.waitUsable}} {
		for _, m := range all {
			if m.rank() != rank {
				continue
			}
			if err := do.call(ctx, m.object); err != nil {
				return fmt.Errorf("manifest %s: %s %s %s: %w", m.file, do.name, m.object.GetKind(), m.object.GetName(), err)
			}
		}
	}
	return nil
}

func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured) error {
	gvk := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	content, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	options := metav1.PatchOptions{FieldManager: "ovsdn-lab", Force: &force}
	_, err = a.client.Resource(mapping.Resource).Namespace(object.GetNamespace()).Patch(ctx, object.GetName(), types.ApplyPatchType, content, options)
	return err
}

// waitUsable waits for the kind that the object defines, if it is a CustomResourceDefinition.
func (a *applier) waitUsable(ctx context.Context, object *unstructured.Unstructured) error {
	if object.GroupVersionKind().GroupKind() != (schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}) {
		return nil
	}
	return a.waitEstablished(ctx, object)
}

// waitEstablished returns when objects of the new kind can be listed. The condition Established alone comes a
// moment before the API server answers for the kind.
func (a *applier) waitEstablished(ctx context.Context, crd *unstructured.Unstructured) error {
	group, _, err := unstructured.NestedString(crd.Object, "spec", "group")
	if err != nil {
		return err
	}
	plural, _, err := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	if err != nil {
		return err
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, establishTimeout, fmt.Errorf("timeout after %v", establishTimeout))
	defer cancel()
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if !ok || version["served"] != true {
			continue
		}
		name, _ := version["name"].(string)
		resource := schema.GroupVersionResource{Group: group, Version: name, Resource: plural}
		if err := poll(ctx, "the kind cannot be used yet", func(ctx context.Context) error {
			_, err := a.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
