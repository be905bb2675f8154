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

// changer asks ovsdn-controller to change the networks of namespaces, and waits until it has.
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
			return config.Change{}, usagef("say which namespace to join: --to=NAMESPACE")
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
				return usagef("name namespaces or give a --selector, one of the two")
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

// checkMode says what oc says too, before anything is asked for.
func (c *changer) checkMode(ctx context.Context) error {
	o, err := c.network.NetworkV1().ClusterNetworks().Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the cluster's network: %w", err)
	}
	network, err := config.InForce(o)
	if err != nil {
		return fmt.Errorf("ClusterNetwork %s %w", o.Name, err)
	}
	if network.Mode != config.ModeMultitenant {
		return fmt.Errorf("the cluster's network is in mode %s (%s): only in mode %s are there networks of namespaces to change",
			network.Mode, network.Mode.PluginName(), config.ModeMultitenant)
	}
	return nil
}

// namespaces returns the names of those that are meant. All must exist, before any is changed.
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
			if ns.Name != change.To { // which is in its own network already
				names = append(names, ns.Name)
			}
		}
	}
	return names, errors.Join(errs...)
}

// change asks for the change, and waits until it is made. What was refused is an error with the controller's words.
func (c *changer) change(ctx context.Context, name string, change config.Change) (config.VNID, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	asked, err := c.ask(ctx, name, change)
	if err != nil {
		return 0, err
	}
	nn, err := c.await(ctx, asked)
	if err != nil {
		return 0, err
	}
	if err := refusal(nn); err != nil {
		return 0, err
	}
	return config.VNID(nn.NetID), nil
}

// refusal returns the controller's reason as an error, nil if the change was made. Older controllers removed the request of a refused
// change, too, and left the reason only.
func refusal(nn *networkv1.NetNamespace) error {
	why, reported := nn.Annotations[config.ChangeRefusedAnnotation]
	value, left := nn.Annotations[networkv1.ChangePodNetworkAnnotation]
	switch {
	case reported:
		return errors.New(why)
	case left:
		return fmt.Errorf("ovsdn-controller refused the change, and the reason was removed: annotation %s is %q; see the Events of the NetNamespace",
			networkv1.ChangePodNetworkAnnotation, value)
	}
	return nil
}

// ask writes the annotation, as `oc adm pod-network` does.
func (c *changer) ask(ctx context.Context, name string, change config.Change) (asked *networkv1.NetNamespace, err error) {
	client := c.network.NetworkV1().NetNamespaces()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		nn, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		delete(nn.Annotations, config.ChangeRefusedAnnotation)
		metav1.SetMetaDataAnnotation(&nn.ObjectMeta, networkv1.ChangePodNetworkAnnotation, change.String())
		asked, err = client.Update(ctx, nn, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("has no VNID yet (is ovsdn-controller running?): %w", err)
	}
	return asked, err
}

// await returns the NetNamespace as soon as the change is made or refused.
func (c *changer) await(ctx context.Context, asked *networkv1.NetNamespace) (*networkv1.NetNamespace, error) {
	client := c.network.NetworkV1().NetNamespaces()
	one := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", asked.Name).String()
		return client.Watch(ctx, options)
	}}
	event, err := watchtools.Until(ctx, asked.ResourceVersion, one, func(event watch.Event) (bool, error) {
		switch o := event.Object.(type) {
		case *networkv1.NetNamespace:
			if event.Type == watch.Deleted {
				return false, errors.New("was deleted meanwhile")
			}
			_, still, _ := config.RequestedChange(o)
			return !still, nil
		default:
			return false, apierrors.FromObject(event.Object)
		}
	})
	if ctx.Err() != nil {
		return nil, fmt.Errorf("ovsdn-controller has not answered within %v (is it running?); the request stays, in the NetNamespace's annotation %s",
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
