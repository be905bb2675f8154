package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// productNamespace has the product's service accounts, named like its programs.
const productNamespace = "ovsdn-system"

// tokenLifetime is longer than a lab lives.
const tokenLifetime = 365 * 24 * time.Hour

// nodesInterval is between two looks at the nodes.
const nodesInterval = 100 * time.Millisecond

// AddNode starts one more node and returns its name when it is ready. It gets the lowest number that is free.
func (l *Lab) AddNode(ctx context.Context, progress func(format string, args ...any)) (string, error) {
	var name string
	return name, l.withLock(ctx, progress, func() error {
		if l.state.Shape.ControlPlaneOnly {
			return fmt.Errorf("lab %s has only a control plane", l.name)
		}
		number := 1
		for slices.Contains(l.state.Nodes, number) {
			number++
		}
		if number > maxNodes {
			return fmt.Errorf("lab %s has %d nodes, which is the most there can be", l.name, len(l.state.Nodes))
		}
		name = nodeName(number)
		if err := l.checkInotifyOf(nodeInotify); err != nil {
			return err
		}
		l.state.Nodes = append(l.state.Nodes, number)
		slices.Sort(l.state.Nodes)
		if err := l.write(); err != nil {
			return err
		}
		u := &up{Lab: l, options: Options{Progress: progress}, began: time.Now()}
		var err error
		if u.plane, err = l.preparePlane(); err != nil {
			return err
		}
		if err := u.step(name, func() error { return u.bootNode(ctx, number) }); err != nil {
			return err
		}
		return u.joinNodes(ctx, number)
	})
}

// RemoveNode deletes the Node object and ends the machine, as when a machine is taken out of a cluster for good.
func (l *Lab) RemoveNode(ctx context.Context, name string, progress func(format string, args ...any)) error {
	return l.withLock(ctx, progress, func() error {
		number, err := l.nodeNumber(name)
		if err != nil {
			return err
		}
		client, err := l.Client()
		if err != nil {
			return err
		}
		// First the kubelet, which would register the node again.
		if err := l.killMachines(ctx, l.machineDir(name), l.cgroup(name)); err != nil {
			return fmt.Errorf("end %s: %w", name, err)
		}
		if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the Node %s: %w", name, err)
		}
		if err := errors.Join(l.detach(name), os.RemoveAll(l.machineDir(name))); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		l.state.Nodes = slices.DeleteFunc(l.state.Nodes, func(n int) bool { return n == number })
		return l.write()
	})
}

// RebootNodes ends machines of nodes with all that runs on them, as a power failure does, and returns when the nodes are ready again. Their
// disks stay; nothing else does.
func (l *Lab) RebootNodes(ctx context.Context, progress func(format string, args ...any), names ...string) error {
	return l.withLock(ctx, progress, func() error {
		var numbers []int
		for _, name := range names {
			number, err := l.nodeNumber(name)
			if err != nil {
				return err
			}
			numbers = append(numbers, number)
		}
		for _, name := range names {
			if err := l.killMachines(ctx, l.machineDir(name), l.cgroup(name)); err != nil {
				return fmt.Errorf("end %s: %w", name, err)
			}
		}
		u := &up{Lab: l, options: Options{Progress: progress}, began: time.Now()}
		var err error
		if u.plane, err = l.preparePlane(); err != nil {
			return err
		}
		group, groupCtx := errgroup.WithContext(ctx)
		for _, number := range numbers {
			group.Go(func() error {
				return u.step(nodeName(number), func() error { return u.bootNode(groupCtx, number) })
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		return u.joinNodes(ctx, numbers...)
	})
}

// bootNode starts a node's machine, with all that needs no API server.
func (u *up) bootNode(ctx context.Context, number int) error {
	name := nodeName(number)
	return u.ensureMachine(ctx, name, func() (machine.Spec, error) {
		if err := u.attach(name, nodeAddr(number)); err != nil {
			return machine.Spec{}, err
		}
		return u.nodeSpec(u.plane, number)
	})
}

// finish starts what needs the API server and waits for the nodes.
func (u *up) finish(ctx context.Context) error {
	if u.state.Shape.ControlPlaneOnly {
		return nil
	}
	return u.joinNodes(ctx, u.state.Nodes...)
}

func (u *up) joinNodes(ctx context.Context, numbers ...int) error {
	hasAgent := u.hasProgram(agentUnit) && u.state.Shape.Install != None
	group, groupCtx := errgroup.WithContext(ctx)
	for _, number := range numbers {
		group.Go(func() error {
			name, units := nodeName(number), u.state.Shape.nodeUnits()
			if err := u.loadProduct(groupCtx, name); err != nil {
				return err
			}
			if hasAgent && u.state.Shape.Install == Processes {
				if err := u.writeProductKubeconfig(groupCtx, name, agentUnit); err != nil {
					return err
				}
				units = append(units, agentUnit)
			}
			return u.startUnits(groupCtx, name, units...)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if hasAgent {
		return u.step("nodes ready", func() error { return u.waitNodes(ctx, numbers, "ready", nodeReady) })
	}
	if err := u.step("nodes registered", func() error {
		return u.waitNodes(ctx, numbers, "registered", func(*corev1.Node) bool { return true })
	}); err != nil {
		return err
	}
	if u.state.Shape.Install == None {
		return nil
	}
	u.options.Progress("there is no %s in %s, so the nodes stay NotReady: build it with \"make build\", then run up again", agentUnit, u.state.BinDir)
	return nil
}

// waitNodes returns when all the nodes are as wanted.
func (u *up) waitNodes(ctx context.Context, numbers []int, what string, wanted func(*corev1.Node) bool) error {
	machines := []string{ControlPlane}
	for _, number := range numbers {
		machines = append(machines, nodeName(number))
	}
	ctx, cancel := u.bePatient(ctx, machines...)
	defer cancel()
	client, err := u.Client()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(nodesInterval)
	defer ticker.Stop()
	missing := numbers
	for {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil {
			missing = slices.DeleteFunc(slices.Clone(numbers), func(number int) bool {
				return slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == nodeName(number) && wanted(&n) })
			})
			if len(missing) == 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return u.explainNodes(missing, what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// explainNodes returns what to examine when nodes are not as expected.
func (u *up) explainNodes(missing []int, what string, err error) error {
	machines := []string{ControlPlane}
	for _, number := range missing {
		machines = append(machines, nodeName(number))
	}
	problems := []error{fmt.Errorf("%s: not %s: %w", strings.Join(machines[1:], ", "), what, err)}
	// The log of a unit that ends again and again is quoted already.
	if unit := (*machine.UnitError)(nil); !errors.As(err, &unit) {
		for _, name := range machines {
			problems = append(problems, u.check(name))
		}
	}
	problems = append(problems, fmt.Errorf("look at the logs of ovsdn-controller, ovsdn-node and kubelet in %s, and at \"ovsdn-lab --name %s kubectl -- describe nodes\"", u.LogDir(), u.name))
	return errors.Join(problems...)
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// writeProductKubeconfig gives one of the product's programs its service account. The URL is the API server's own
// address, since the program makes the service network that leads there too.
func (u *up) writeProductKubeconfig(ctx context.Context, machineName, program string) error {
	client, err := u.Client()
	if err != nil {
		return err
	}
	seconds := int64(tokenLifetime.Seconds())
	token, err := client.CoreV1().ServiceAccounts(productNamespace).CreateToken(ctx, program, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of service account %s: %w", program, err)
	}
	kubeconfig, err := u.plane.Kubeconfig(u.plane.URL(), controlplane.Credentials{Token: token.Status.Token})
	if err != nil {
		return err
	}
	return writeFile(u.productKubeconfig(machineName, program), kubeconfig)
}
