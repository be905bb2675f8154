package networkpolicy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// cluster is a fake API server with recorded Events, in a synctest bubble.
type cluster struct {
	t        *testing.T
	kube     *fake.Clientset
	policies *policyfake.Clientset

	mu       sync.Mutex
	lacksCRD bool     // of ClusterNetworkPolicies
	events   []string // since the last call of wantEvents, as "Type Reason name: message"
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, kube: fake.NewClientset(), policies: policyfake.NewSimpleClientset()}
	c.policies.PrependReactor("list", "clusternetworkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.lacksCRD {
			return true, nil, apierrors.NewNotFound(policyv1alpha2.Resource("clusternetworkpolicies"), "")
		}
		return false, nil, nil
	})
	return c
}

// lead starts a controller, which stop stops.
func (c *cluster) lead(mode config.Mode) (controller *Controller, stop func()) {
	c.t.Helper()
	controller, err := New(Clients{Kube: c.kube, Policies: c.policies, Events: recorder{c}})
	if err != nil {
		c.t.Fatal(err)
	}
	controller.SetMode(mode)
	ctx, cancel := context.WithCancel(klog.NewContext(c.t.Context(), logr.Discard()))
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	return controller, func() {
		cancel()
		running.Wait()
	}
}

// wantEvents compares the Events since its last call, when all goroutines are idle.
func (c *cluster) wantEvents(want ...string) {
	c.t.Helper()
	time.Sleep(time.Second) //nolint:forbidigo // of the bubble, so that informers have started and the queue is empty
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.events) // the order of two watches is undefined
	if diff := cmp.Diff(want, c.events); diff != "" {
		c.t.Errorf("Events (-want +got):\n%s", diff)
	}
	c.events = nil
}

// networkPolicy returns a policy that has a fault if the CIDR is invalid.
func networkPolicy(name string, generation int64, cidr string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: generation},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}},
		}}},
	}
}

// clusterPolicy returns a policy that can't be enforced.
func clusterPolicy(name string) *policyv1alpha2.ClusterNetworkPolicy {
	return &policyv1alpha2.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1},
		Spec: policyv1alpha2.ClusterNetworkPolicySpec{
			Tier:    policyv1alpha2.AdminTier,
			Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
			Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
				Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
				To:     []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{DomainNames: []policyv1alpha2.DomainName{"example.com."}}},
			}},
		},
	}
}

const (
	invalid    = "192.0.2.0"
	valid      = "192.0.2.0/24"
	eventOfDB  = `Warning PartlyNotEnforced db: this can't be enforced, and allows nothing: ingress/0: ipBlock "192.0.2.0": netip.ParsePrefix("192.0.2.0"): no '/'`
	eventOfCNP = "Warning PartlyNotEnforced names: this can't be enforced: egress/0: domain names can't be peers; egress/0: the rule matches nothing"
)

func (c *cluster) create(np *networkingv1.NetworkPolicy) {
	c.t.Helper()
	if _, err := c.kube.NetworkingV1().NetworkPolicies(np.Namespace).Create(c.t.Context(), np, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) update(np *networkingv1.NetworkPolicy) {
	c.t.Helper()
	if _, err := c.kube.NetworkingV1().NetworkPolicies(np.Namespace).Update(c.t.Context(), np, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) createCluster(o *policyv1alpha2.ClusterNetworkPolicy) {
	c.t.Helper()
	if _, err := c.policies.PolicyV1alpha2().ClusterNetworkPolicies().Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) setCRD(exists bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lacksCRD = !exists
}

// Faults are reported once for each version of the spec, and once by each leader.
func TestController_reportsFaultsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(networkPolicy("valid", 1, valid))
		_, stop := c.lead(config.ModeNetworkPolicy)
		c.wantEvents()
		c.create(networkPolicy("db", 1, invalid))
		c.wantEvents(eventOfDB)
		c.createCluster(clusterPolicy("names"))
		c.wantEvents(eventOfCNP)

		labeled := networkPolicy("db", 1, invalid)
		labeled.Labels = map[string]string{"team": "a"}
		c.update(labeled)
		time.Sleep(24 * time.Hour) //nolint:forbidigo // of the bubble
		c.wantEvents()
		c.update(networkPolicy("db", 2, invalid))
		c.wantEvents(eventOfDB)
		stop()

		_, stop = c.lead(config.ModeMultitenant)
		c.wantEvents(eventOfDB, eventOfCNP)
		c.update(networkPolicy("db", 3, valid))
		c.wantEvents()
		recreated := networkPolicy("db", 3, invalid)
		recreated.UID = "another"
		c.update(recreated)
		c.wantEvents(eventOfDB)
		stop()
	})
}

// The newest policies of a namespace that exceeds its budget are reported.
func TestController_overBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		// Eleven of these fit into a namespace's budget.
		large := func(name string, age int, blocks int) *networkingv1.NetworkPolicy {
			np := networkPolicy(name, 1, valid)
			np.CreationTimestamp = metav1.NewTime(time.Unix(int64(age), 0))
			for i := range blocks {
				block := &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.%d.%d/32", i>>8, i&0xff)}
				np.Spec.Ingress[0].From = append(np.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{IPBlock: block})
			}
			return np
		}
		for i := range 11 {
			c.create(large(fmt.Sprintf("np%02d", i), i, 4500))
		}
		_, stop := c.lead(config.ModeNetworkPolicy)
		c.wantEvents()
		const (
			report   = "Warning PartlyNotEnforced %s: this can't be enforced, and allows nothing: "
			beyond   = "the policies of the namespace are beyond its budget: the newest have no rules, this one among them; delete policies of the namespace, or give them fewer rules, peers and ports"
			tooLarge = "the policy is too large for its budget of 10000 flows, or has more than 10000 peers, ports and exceptions: it allows nothing; divide it or make it smaller"
		)
		c.create(large("newest", 20, 4500))
		c.wantEvents(fmt.Sprintf(report, "newest") + beyond)
		c.create(large("older", 5, 4500))
		c.wantEvents(fmt.Sprintf(report, "np10") + beyond)
		c.create(large("larger", 30, 6000))
		c.wantEvents(fmt.Sprintf(report, "larger")+tooLarge, fmt.Sprintf(report, "larger")+tooLarge+"; "+beyond)
		stop()
	})
}

// In mode subnet, each policy is reported as not enforced, whatever its faults.
func TestController_modeSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.create(networkPolicy("db", 1, invalid))
		c.createCluster(clusterPolicy("names"))
		controller, stop := c.lead(config.ModeSubnet)
		notEnforced := []string{fmt.Sprintf("Warning NotSupported db: %v", errModeSubnet), fmt.Sprintf("Warning NotSupported names: %v", errModeSubnet)}
		c.wantEvents(notEnforced...)
		controller.SetMode(config.ModeSubnet)
		c.wantEvents()
		controller.SetMode(config.ModeNetworkPolicy)
		c.wantEvents(eventOfDB, eventOfCNP)
		controller.SetMode(config.ModeMultitenant)
		c.wantEvents()
		controller.SetMode(config.ModeSubnet)
		c.wantEvents(notEnforced...)
		stop()
	})
}

func TestController_missingCRD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.setCRD(false)
		_, stop := c.lead(config.ModeNetworkPolicy)
		c.create(networkPolicy("db", 1, invalid))
		c.wantEvents(eventOfDB)
		c.setCRD(true)
		c.createCluster(clusterPolicy("names"))
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		c.wantEvents(eventOfCNP)
		stop()

		// A CRD that is never created does not delay the end.
		c.setCRD(false)
		_, stop = c.lead(config.ModeNetworkPolicy)
		c.wantEvents(eventOfDB)
		stop()
	})
}

// The rate of Events is limited, and none is dropped.
func TestController_rateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		const policies = 1000
		for i := range policies {
			c.createCluster(clusterPolicy(fmt.Sprint("cnp", i)))
		}
		_, stop := c.lead(config.ModeNetworkPolicy)
		count := func() int {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.events)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
		if n := count(); n < eventBurst+9*eventsPerSecond || n > eventBurst+10*eventsPerSecond {
			t.Errorf("got %d Events in 10 s, want about %d", n, eventBurst+10*eventsPerSecond)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		if n := count(); n != policies {
			t.Errorf("got %d Events, want one for each of %d policies", n, policies)
		}
		stop()
	})
}

func TestTruncate(t *testing.T) {
	if got := truncate(eventOfDB); got != eventOfDB {
		t.Errorf("got %q, want %q", got, eventOfDB)
	}
	for _, text := range []string{strings.Repeat("x", maxMessageLength+1), strings.Repeat("…", maxMessageLength), "x" + strings.Repeat("…", maxMessageLength)} {
		got := truncate(text)
		if len(got) > maxMessageLength || len(got) < maxMessageLength-2 || !utf8.ValidString(got) || !strings.HasSuffix(got, "have the rest)") {
			t.Errorf("got %d bytes %q, want at most %d of valid UTF-8", len(got), got, maxMessageLength)
		}
	}
}

// The fields that validation and Events use are retained.
func TestTrim(t *testing.T) {
	np := networkPolicy("db", 7, invalid)
	np.ResourceVersion, np.Annotations = "5", map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"}
	np.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	cnp := clusterPolicy("names")
	cnp.ManagedFields, cnp.Status.Conditions = np.ManagedFields, []metav1.Condition{{Type: "Accepted"}}
	wantNP := networkPolicy("db", 7, invalid)
	wantNP.ResourceVersion = "5"
	for _, tc := range []struct{ o, want any }{{np, wantNP}, {cnp, clusterPolicy("names")}} {
		got, err := trim(tc.o)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// recorder is a record.EventRecorder that adds to the Events of the cluster.
type recorder struct{ *cluster }

func (r recorder) Event(about runtime.Object, typ, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s %s %s: %s", typ, reason, about.(metav1.Object).GetName(), message))
}

func (r recorder) Eventf(about runtime.Object, typ, reason, format string, args ...any) {
	r.Event(about, typ, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(about runtime.Object, _ map[string]string, typ, reason, format string, args ...any) {
	r.Eventf(about, typ, reason, format, args...)
}

func (r recorder) WithLogger(klog.Logger) record.EventRecorderLogger { return r }
