package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

func idleCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "idle SERVICE",
		Short: "Scale the pods of a service to 0 until a packet for it arrives",
		Long: "Scale the Deployments, ReplicaSets, StatefulSets and ReplicationControllers of a service's pods to 0, and record their replicas in annotations of the\n" +
			"Service. The next packet for the service restores them, if agents run with --service-proxy=ovs and ovsdn-controller with --unidle.",
		Example: "  kubectl ovsdn idle web --namespace=shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("specify one service")
			}
			namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
			if err != nil {
				return err
			}
			kube, network, err := clients(flags)
			if err != nil {
				return err
			}
			return (&idler{IOStreams: streams, kube: kube, network: network, namespace: namespace}).idle(cmd.Context(), args[0], time.Now())
		},
	}
}

// idler idles services of a namespace.
type idler struct {
	genericiooptions.IOStreams
	kube      kubernetes.Interface
	network   networkclient.Interface
	namespace string
}

// idle writes the annotations first: a service whose pods are scaled to 0 and that has none would never be woken.
func (c *idler) idle(ctx context.Context, name string, now time.Time) error {
	service, err := c.kube.CoreV1().Services(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if since, ok := config.IdledAt(service.Annotations); ok {
		return fmt.Errorf("service %s is idled since %s", name, since.Format(time.RFC3339))
	}
	if !endpoints.NewService(service).Proxied {
		return fmt.Errorf("the switch does not balance service %s, so no packet would wake it: it is headless, of type ExternalName, has no IPv4 cluster IP, "+
			"or has label %s; scale its workloads by hand", name, endpoints.ProxyNameLabel)
	}
	if len(service.Spec.Selector) == 0 {
		return fmt.Errorf("service %s has no selector, so it has no pods to scale", name)
	}
	workloads, err := c.workloads(ctx, service)
	if err != nil {
		return err
	}
	if err := c.annotate(ctx, service, workloads, now); err != nil {
		return err
	}
	c.warnServiceProxy(ctx)
	fmt.Fprintf(c.Out, "service/%s idled\n", name)
	var errs []error
	for _, w := range workloads {
		if err := c.scaleToZero(ctx, w); err != nil {
			errs = append(errs, fmt.Errorf("scale %s to 0: %w; the service is woken by the next packet, or scale it by hand", w.UnidleTarget, err))
			continue
		}
		fmt.Fprintf(c.Out, "%s/%s scaled from %d to 0\n", w.resource(), w.Name, w.Replicas)
	}
	return errors.Join(errs...)
}

// warnServiceProxy warns about a cluster in which no packet wakes the service. Users without the right to read the ClusterNetwork get no warning.
func (c *idler) warnServiceProxy(ctx context.Context) {
	o, err := c.network.NetworkV1().ClusterNetworks().Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		return
	}
	active, err := config.ActiveNetwork(o)
	if err != nil {
		fmt.Fprintf(c.ErrOut, "warning: ClusterNetwork %s %v. Until then packets may not wake the service.\n", o.Name, err)
		return
	}
	if proxy := cmp.Or(active.ServiceProxy, config.ServiceProxyExternal); proxy != config.ServiceProxyOVS {
		fmt.Fprintf(c.ErrOut, "warning: service proxy of ClusterNetwork %s is %s, so packets do not wake the service. Set annotation %s=%s, or scale the workloads by hand.\n",
			o.Name, proxy, config.ServiceProxyAnnotation, config.ServiceProxyOVS)
	}
}

// annotate records the replicas. The API server refuses it if the Service has changed since it was read.
func (c *idler) annotate(ctx context.Context, service *corev1.Service, workloads []workload, now time.Time) error {
	targets := make([]config.UnidleTarget, 0, len(workloads))
	for _, w := range workloads {
		targets = append(targets, w.UnidleTarget)
	}
	value, err := config.FormatUnidleTargets(targets)
	if err != nil {
		return err
	}
	if _, err := config.ParseUnidleTargets(value); err != nil {
		return fmt.Errorf("service %s can't be idled: %w", service.Name, err)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": service.ResourceVersion, "annotations": map[string]string{
		unidlingv1alpha1.IdledAtAnnotation: now.UTC().Format(time.RFC3339), unidlingv1alpha1.UnidleTargetAnnotation: value,
	}}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.kube.CoreV1().Services(c.namespace).Patch(ctx, service.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
