package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// errReported is the result of a command that has printed all that there is to print: the exit code is 1, without a message.
var errReported = errors.New("reported")

// diagnosticsPath is the path of the aggregated API.
const diagnosticsPath = "/apis/" + diagnostics.Group + "/" + diagnostics.Version

// readDiagnostics reads a path of the aggregated API.
func readDiagnostics(ctx context.Context, kube kubernetes.Interface, into any, parameters map[string]string, path ...string) error {
	request := kube.Discovery().RESTClient().Get().AbsPath(diagnosticsPath + "/" + strings.Join(path, "/"))
	for name, value := range parameters {
		request = request.Param(name, value)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return explainAPIError(err)
	}
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("answer of %s/%s: %w", diagnosticsPath, strings.Join(path, "/"), err)
	}
	return nil
}

// explainAPIError adds what to do to the errors of an API group that is not registered, or has no backend.
func explainAPIError(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	s := status.Status()
	switch {
	case s.Code == http.StatusNotFound && (s.Details == nil || s.Details.Group != diagnostics.Group):
		return fmt.Errorf("the API server has no group %s: %w; apply deploy/base of this version", diagnostics.Group, err)
	case s.Code == http.StatusServiceUnavailable && (s.Details == nil || s.Details.Group != diagnostics.Group):
		return fmt.Errorf("no controller answers for the API group %s: %w; see `kubectl get apiservice %s.%s`, check that ovsdn-controller runs and that "+
			"kube-apiserver reaches it, with --enable-aggregator-routing if its machine has neither kube-proxy nor ovsdn-node with --service-proxy=ovs (docs/diagnostics.md)", diagnostics.Group, err, diagnostics.Version, diagnostics.Group)
	}
	return err
}

// objectsOf returns the objects of unstructured JSON, for printers.
func objectsOf[T any](items []T) ([]unstructured.Unstructured, error) {
	list := make([]unstructured.Unstructured, len(items))
	for i := range items {
		encoded, err := json.Marshal(items[i])
		if err == nil {
			err = list[i].UnmarshalJSON(encoded)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// completeNodes completes names of Nodes.
func completeNodes(flags *genericclioptions.ConfigFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
		names, err := listNames(cmd.Context(), flags, "/api/v1/nodes")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return beginning(begin, "", names), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeObject completes an object such as pod/NAMESPACE/NAME of one of the kinds.
func completeObject(ctx context.Context, flags *genericclioptions.ConfigFlags, begin string, of ...diagnostics.Kind) ([]string, cobra.ShellCompDirective) {
	paths := map[diagnostics.Kind]string{
		diagnostics.KindPod: "/api/v1/pods", diagnostics.KindNamespace: "/api/v1/namespaces", diagnostics.KindService: "/api/v1/services", diagnostics.KindNode: "/api/v1/nodes",
		diagnostics.KindNetworkPolicy: "/apis/networking.k8s.io/v1/networkpolicies", diagnostics.KindClusterNetworkPolicy: "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
		diagnostics.KindEgressNetworkPolicy: "/apis/network.openshift.io/v1/egressnetworkpolicies",
	}
	kind, _, complete := strings.Cut(begin, "/")
	if !complete {
		var kinds []string
		for _, k := range of {
			kinds = append(kinds, string(k)+"/")
		}
		return beginning(begin, "", kinds), cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	names, err := listNames(ctx, flags, paths[diagnostics.Kind(kind)])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return beginning(begin, kind+"/", names), cobra.ShellCompDirectiveNoFileComp
}

func beginning(with, prefix string, names []string) (found []string) {
	for _, name := range names {
		if strings.HasPrefix(prefix+name, with) {
			found = append(found, prefix+name)
		}
	}
	return found
}

// listNames returns the names of all objects of a path, NAMESPACE/NAME in namespaces.
func listNames(ctx context.Context, flags *genericclioptions.ConfigFlags, path string) ([]string, error) {
	kube, _, err := clients(flags)
	if err != nil {
		return nil, err
	}
	raw, err := kube.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	var names []string
	for _, o := range list.Items {
		if o.Namespace != "" {
			names = append(names, o.Namespace+"/"+o.Name)
		} else {
			names = append(names, o.Name)
		}
	}
	return names, nil
}
