package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
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
			kube, _, err := clients(flags)
			if err != nil {
				return err
			}
			return (&idler{IOStreams: streams, kube: kube, namespace: namespace}).idle(cmd.Context(), args[0], time.Now())
		},
	}
}

// idler idles services of a namespace.
type idler struct {
	genericiooptions.IOStreams
	kube      kubernetes.Interface
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
