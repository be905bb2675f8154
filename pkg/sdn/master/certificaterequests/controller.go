// Package certificaterequests signs the CertificateSigningRequests of agents for their serving certificates (docs/decisions/0020-diagnostics.md).
package certificaterequests

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	workers = 2
	// requestRate limits all requests: each takes up to four API calls, and those of HostSubnets must not wait for them.
	requestRate  = 20 // per second
	requestBurst = 20
	// authorityRetry is the pause while there is no authority.
	authorityRetry = 5 * time.Second
)

// Reasons of conditions.
const (
	reasonApproved = "AgentOfNode"
	reasonRefused  = "NotAllowed"
)

// Controller approves and signs requests of agents for the node of their pod, and denies others. It has no state that outlives a term.
type Controller struct {
	kube      kubernetes.Interface
	network   networkclient.Interface
	authority func() *certificates.Authority // nil: none yet
	informer  cache.SharedIndexInformer
	loop      *reconcile.Loop
	limiter   *rate.Limiter
	budgets   *budgets
	now       func() time.Time
}

// New returns a controller of one term.
func New(kube kubernetes.Interface, network networkclient.Interface, authority func() *certificates.Authority) (*Controller, error) {
	selector := fields.OneTermEqualSelector("spec.signerName", certificates.SignerName).String()
	c := &Controller{
		kube: kube, network: network, authority: authority,
		informer: certificatesinformers.NewFilteredCertificateSigningRequestInformer(kube, 0, cache.Indexers{},
			func(o *metav1.ListOptions) { o.FieldSelector = selector }),
		limiter: rate.NewLimiter(requestRate, requestBurst), budgets: newBudgets(), now: time.Now,
	}
	c.loop = reconcile.New("certificate-requests", c.reconcile)
	if err := c.informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("watch CertificateSigningRequests: %w", err)
	}
	return c, c.loop.WatchUnless(c.informer, reconcile.SameVersion)
}

// Run reconciles until the context ends.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.informer.RunWithContext(ctx) })
	c.loop.Run(ctx, workers)
}

// trim retains what decides whether a request is pending, and of which node: the content has any size.
func trim(o any) (any, error) {
	request, ok := o.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return o, nil
	}
	trimmed := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: request.Name, UID: request.UID, ResourceVersion: request.ResourceVersion},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Username: config.Shorten(request.Spec.Username)},
	}
	if node, err := certificates.RequestingNode(&request.Spec); err == nil {
		trimmed.Spec.Extra = map[string]certificatesv1.ExtraValue{certificates.NodeNameExtra: {node}}
	}
	if isFinished(request) {
		trimmed.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateFailed}} // any that finishes it
	}
	return trimmed, nil
}

// isFinished reports whether the request was signed, denied, or failed.
func isFinished(o *certificatesv1.CertificateSigningRequest) bool {
	return len(o.Status.Certificate) > 0 || has(o, certificatesv1.CertificateDenied) || has(o, certificatesv1.CertificateFailed)
}

func has(o *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == kind {
			return true
		}
	}
	return false
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	cached := reconcile.Cached[certificatesv1.CertificateSigningRequest](c.informer, key)
	if cached == nil || isFinished(cached) {
		return nil
	}
	authority := c.authority()
	if authority == nil {
		c.loop.AddAfter(key, authorityRetry)
		return nil
	}
	sender, _ := certificates.RequestingNode(&cached.Spec) // "": all others
	if pause := c.budgets.take(sender); pause > 0 {
		klog.FromContext(ctx).V(5).Info("Too many certificate requests of a node", "node", sender, "retryAfter", pause)
		c.loop.AddAfter(key, wait.Jitter(pause, 0.5))
		return nil
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return nil //nolint:nilerr // the context has ended
	}
	o, err := reconcile.OrNil(c.kube.CertificatesV1().CertificateSigningRequests().Get(ctx, key, metav1.GetOptions{}))
	if err != nil {
		return fmt.Errorf("get CertificateSigningRequest: %w", err)
	}
	if o == nil || o.Spec.SignerName != certificates.SignerName || isFinished(o) {
		return nil
	}
	return c.decide(ctx, authority, o)
}

// decide signs or refuses a pending request.
func (c *Controller) decide(ctx context.Context, authority *certificates.Authority, o *certificatesv1.CertificateSigningRequest) error {
	node, invalid := certificates.RequestingNode(&o.Spec)
	if invalid != nil {
		return c.refuse(ctx, o, invalid)
	}
	hostIP, err := c.hostIP(ctx, node)
	if err != nil {
		return err
	}
	request, invalid := certificates.ValidateRequest(&o.Spec, node, hostIP)
	if invalid != nil {
		return c.refuse(ctx, o, invalid)
	}
	client := c.kube.CertificatesV1().CertificateSigningRequests()
	if !has(o, certificatesv1.CertificateApproved) {
		setCondition(o, certificatesv1.CertificateApproved, reasonApproved, "The token of the agent was issued to a pod of the node.")
		if o, err = client.UpdateApproval(ctx, o.Name, o, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("approve CertificateSigningRequest: %w", err)
		}
	}
	if o.Status.Certificate, err = authority.Agent(c.now(), request); err != nil {
		return err
	}
	if _, err = client.UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("sign CertificateSigningRequest: %w", err)
	}
	klog.FromContext(ctx).Info("Signed the certificate of an agent", "node", node)
	return nil
}

// hostIP returns the address of the node's HostSubnet, the zero address if it has none. It does not depend on a cache, which may be late: the HostSubnet
// is created just before the request.
func (c *Controller) hostIP(ctx context.Context, node string) (netip.Addr, error) {
	o, err := reconcile.OrNil(c.network.NetworkV1().HostSubnets().Get(ctx, node, metav1.GetOptions{}))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("get HostSubnet: %w", err)
	}
	if o == nil {
		return netip.Addr{}, nil
	}
	addr, err := config.ParseHostIP(o.HostIP)
	if err != nil {
		return netip.Addr{}, nil //nolint:nilerr // an invalid HostSubnet is reported elsewhere
	}
	return addr, nil
}

// refuse denies the request. One that another client has approved can't be denied: it fails.
func (c *Controller) refuse(ctx context.Context, o *certificatesv1.CertificateSigningRequest, reason error) error {
	klog.FromContext(ctx).Info("Refused a certificate request", "user", config.Shorten(o.Spec.Username), "err", reason.Error())
	client, message, err := c.kube.CertificatesV1().CertificateSigningRequests(), config.Shorten(reason.Error()), error(nil)
	if has(o, certificatesv1.CertificateApproved) {
		setCondition(o, certificatesv1.CertificateFailed, reasonRefused, message)
		_, err = client.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	} else {
		setCondition(o, certificatesv1.CertificateDenied, reasonRefused, message)
		_, err = client.UpdateApproval(ctx, o.Name, o, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("refuse CertificateSigningRequest: %w", err)
	}
	return nil
}

func setCondition(o *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) {
	o.Status.Conditions = append(o.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now(),
	})
}
