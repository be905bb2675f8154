package egresspolicy

import (
	"cmp"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// generation identifies the rules of a policy: each node writes to its status, which changes the resourceVersion only.
type generation struct {
	UID    types.UID `json:"uid"`
	Number int64     `json:"generation"`
}

// generationOf returns the zero generation for other objects.
func generationOf(obj any) generation {
	if o, ok := obj.(*networkv1.EgressNetworkPolicy); ok {
		return generation{o.UID, o.Generation}
	}
	return generation{}
}

// versionOf identifies the rules of policies: their generations, sorted.
func versionOf(objects []*networkv1.EgressNetworkPolicy) []generation {
	version := make([]generation, len(objects))
	for i, o := range objects {
		version[i] = generationOf(o)
	}
	slices.SortFunc(version, func(a, b generation) int { return cmp.Compare(a.UID, b.UID) })
	return version
}

// isInvalid reports whether a namespace has policies which are invalid.
func (p *Policies) isInvalid(name string) bool {
	_, err := config.MergeEgressNetworkPolicies(p.objects(name))
	return err != nil
}

func ownerOf(namespace string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindEgressFirewall, Key: namespace}
}

// objects returns the cached policies of a namespace.
func (p *Policies) objects(namespace string) []*networkv1.EgressNetworkPolicy {
	cached, err := p.options.Policies.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil
	}
	var all []*networkv1.EgressNetworkPolicy
	for _, obj := range cached {
		if o, ok := obj.(*networkv1.EgressNetworkPolicy); ok {
			all = append(all, o)
		}
	}
	return all
}
