package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// changer requests changes of namespaces' networks from ovsdn-controller, and waits for them.
type changer struct {
	genericiooptions.IOStreams
	flags    *genericclioptions.ConfigFlags
	selector string
	timeout  time.Duration

	kube    kubernetes.Interface
	network networkclient.Interface
}

func joinCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var to string
	cmd := changeCommand(flags, streams, func() (config.Change, error) {
		if to == "" {
			return config.Change{}, usagef("no namespace to join; add --to=NAMESPACE")
		}
		change, err := config.ParseChange(config.Change{Action: config.ActionJoin, To: to}.String())
		if err != nil {
			return change, usagef("--to: %w", err)
		}
		return change, nil
	})
	cmd.Use = "join-projects --to=NAMESPACE (NAMESPACE... | --selector=SELECTOR)"
	cmd.Short = "Let namespaces share the network of another"
	cmd.Long = "Give namespaces the VNID that another namespace has, so that their pods reach each other. Mode multitenant only."
	cmd.Example = "  # p2 and p1 become one network\n  kubectl ovsdn join-projects --to=p1 p2\n\n" +
		"  # so do all namespaces with a label\n  kubectl ovsdn join-projects --to=p1 --selector=team=red"
	cmd.Flags().StringVar(&to, "to", "", "`namespace` whose network is joined")
	return cmd
}

func isolateCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := changeCommand(flags, streams, always(config.ActionIsolate))
	cmd.Use = "isolate-projects (NAMESPACE... | --selector=SELECTOR)"
	cmd.Short = "Give namespaces a network of their own"
	cmd.Long = "Give namespaces a VNID that no other has, so that only the global ones reach their pods. Mode multitenant only."
	cmd.Example = "  kubectl ovsdn isolate-projects p1\n  kubectl ovsdn isolate-projects --selector=team=red"
	return cmd
}

func globalCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := changeCommand(flags, streams, always(config.ActionGlobal))
	cmd.Use = "make-projects-global (NAMESPACE... | --selector=SELECTOR)"
	cmd.Short = "Let namespaces reach all others, and be reached by all"
	cmd.Long = "Give namespaces VNID 0, so that their pods and those of all other namespaces reach each other. Mode multitenant only."
	cmd.Example = "  kubectl ovsdn make-projects-global monitoring"
	return cmd
}

func always(action config.Action) func() (config.Change, error) {
	return func() (config.Change, error) { return config.Change{Action: action}, nil }
}

func changeCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams, wanted func() (config.Change, error)) *cobra.Command {
	c := &changer{IOStreams: streams, flags: flags}
	cmd := &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := wanted()
			if err != nil {
				return err
			}
			if (len(args) > 0) == (c.selector != "") {
				return usagef("specify either namespaces or --selector")
			}
			return c.run(cmd.Context(), change, args)
		},
	}
	cmd.Flags().StringVarP(&c.selector, "selector", "l", "", "label selector of the namespaces")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 30*time.Second, "how long to wait for ovsdn-controller, for each namespace")
	return cmd
}

func (c *changer) run(ctx context.Context, change config.Change, names []string) (err error) {
	if c.kube, c.network, err = clients(c.flags); err != nil {
		return err
	}
	if err := c.checkMode(ctx); err != nil {
		return err
	}
	if names, err = c.namespaces(ctx, change, names); err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		vnid, err := c.change(ctx, name, change)
		if err != nil {
			errs = append(errs, fmt.Errorf("namespace %s: %w", name, err))
			continue
		}
		fmt.Fprintf(c.Out, "namespace/%s %s (VNID %s)\n", name, done(change), vnid)
	}
	return errors.Join(errs...)
}

func done(change config.Change) string {
	switch change.Action {
	case config.ActionJoin:
		return "joined " + change.To
	case config.ActionIsolate:
		return "isolated"
	}
	return "made global"
}

// checkMode returns an error, as oc does, before any request if the mode has no VNIDs.
func (c *changer) checkMode(ctx context.Context) error {
	o, err := c.network.NetworkV1().ClusterNetworks().Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the cluster's network: %w", err)
	}
	network, err := config.ActiveNetwork(o)
	if err != nil {
		return fmt.Errorf("ClusterNetwork %s %w", o.Name, err)
	}
	if network.Mode != config.ModeMultitenant {
		return fmt.Errorf("the cluster's network is in mode %s (%s): networks of namespaces can be changed only in mode %s",
			network.Mode, network.Mode.PluginName(), config.ModeMultitenant)
	}
	return nil
}

// namespaces returns the names of the selected namespaces. All must exist before any is changed.
func (c *changer) namespaces(ctx context.Context, change config.Change, names []string) ([]string, error) {
	var errs []error
	exists := func(name string) {
		if _, err := c.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			errs = append(errs, err)
		}
	}
	for _, name := range names {
		exists(name)
	}
	if change.To != "" {
		exists(change.To)
	}
	if c.selector != "" {
		list, err := c.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: c.selector})
		if err != nil {
			return nil, err
		}
		if len(list.Items) == 0 {
			return nil, fmt.Errorf("no namespace has labels that match %s", c.selector)
		}
		for _, ns := range list.Items {
			if ns.Name != change.To { // it has that VNID already
				names = append(names, ns.Name)
			}
		}
	}
	return names, errors.Join(errs...)
}

// change requests the change, and waits until it is complete. A refusal is an error with the controller's reason.
func (c *changer) change(ctx context.Context, name string, change config.Change) (config.VNID, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	requested, err := c.request(ctx, name, change)
	if err != nil {
		return 0, err
	}
	nn, err := c.await(ctx, requested)
	if err != nil {
		return 0, err
	}
	if err := refusal(nn); err != nil {
		return 0, err
	}
	return config.VNID(nn.NetID), nil
}

// refusal returns the controller's reason as an error, nil if the change is complete. Older controllers removed the request of a
// refused change, too, and left only the reason.
func refusal(nn *networkv1.NetNamespace) error {
	reason, reported := nn.Annotations[config.ChangeRefusedAnnotation]
	value, remains := nn.Annotations[networkv1.ChangePodNetworkAnnotation]
	switch {
	case reported:
		return errors.New(reason)
	case remains:
		return fmt.Errorf("ovsdn-controller refused the change, and the reason was removed: annotation %s is %q; see the Events of the NetNamespace",
			networkv1.ChangePodNetworkAnnotation, value)
	}
	return nil
}

// request writes the annotation, as `oc adm pod-network` does.
func (c *changer) request(ctx context.Context, name string, change config.Change) (requested *networkv1.NetNamespace, err error) {
	client := c.network.NetworkV1().NetNamespaces()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		nn, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		delete(nn.Annotations, config.ChangeRefusedAnnotation)
		metav1.SetMetaDataAnnotation(&nn.ObjectMeta, networkv1.ChangePodNetworkAnnotation, change.String())
		requested, err = client.Update(ctx, nn, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("has no VNID yet: %w; check that ovsdn-controller runs", err)
	}
	return requested, err
}

// await returns the NetNamespace as soon as the change is complete or refused.
func (c *changer) await(ctx context.Context, requested *networkv1.NetNamespace) (*networkv1.NetNamespace, error) {
	client := c.network.NetworkV1().NetNamespaces()
	single := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", requested.Name).String()
		return client.Watch(ctx, options)
	}}
	event, err := watchtools.Until(ctx, requested.ResourceVersion, single, func(event watch.Event) (bool, error) {
		switch o := event.Object.(type) {
		case *networkv1.NetNamespace:
			if event.Type == watch.Deleted {
				return false, errors.New("was deleted in the meantime")
			}
			_, pending, _ := config.RequestedChange(o)
			return !pending, nil
		default:
			return false, apierrors.FromObject(event.Object)
		}
	})
	if ctx.Err() != nil {
		return nil, fmt.Errorf("ovsdn-controller did not answer within %v; the request remains in the NetNamespace's annotation %s; check that ovsdn-controller runs",
			c.timeout, networkv1.ChangePodNetworkAnnotation)
	}
	if err != nil {
		return nil, err
	}
	nn, ok := event.Object.(*networkv1.NetNamespace)
	if !ok {
		return nil, fmt.Errorf("the API server sent a %T", event.Object)
	}
	return nn, nil
}

func clients(flags *genericclioptions.ConfigFlags) (kubernetes.Interface, networkclient.Interface, error) {
	rest, err := flags.ToRESTConfig()
	if err != nil {
		return nil, nil, err
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, nil, err
	}
	network, err := networkclient.NewForConfig(rest)
	return kube, network, err
}
