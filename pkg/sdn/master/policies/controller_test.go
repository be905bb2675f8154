package policies

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

// world is a cluster, and what is said of its policies. Whatever it starts ends with the test's bubble, or the test fails.
type world struct {
	t     *testing.T
	kube  *fake.Clientset
	kinds *policyfake.Clientset
	lacks bool // ClusterNetworkPolicies, which the cluster does not know yet

	mu   sync.Mutex
	said []string // and not yet asked for, as "Type Reason name: message"
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, kube: fake.NewClientset(), kinds: policyfake.NewSimpleClientset()}
	w.kinds.PrependReactor("list", "clusternetworkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.lacks {
			return true, nil, apierrors.NewNotFound(policyv1alpha2.Resource("clusternetworkpolicies"), "")
		}
		return false, nil, nil
	})
	return w
}

// lead starts a controller, in the end of which nothing of it is left.
func (w *world) lead(mode config.Mode) (c *Controller, stop func()) {
	w.t.Helper()
	c, err := New(Clients{Kube: w.kube, Policies: w.kinds, Events: recorder{w}})
	if err != nil {
		w.t.Fatal(err)
	}
	c.Follow(mode)
	ctx, cancel := context.WithCancel(klog.NewContext(w.t.Context(), logr.Discard()))
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	return c, func() {
		cancel()
		running.Wait()
	}
}

// says compares what was said since it was asked last, when all has come to rest.
func (w *world) says(want ...string) {
	w.t.Helper()
	time.Sleep(time.Second) //nolint:forbidigo // of the bubble, so that informers have been started and all that is due was served
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.said) // two watches are in no order
	if diff := cmp.Diff(want, w.said); diff != "" {
		w.t.Errorf("(-want +said):\n%s", diff)
	}
	w.said = nil
}

// networkPolicy has a fault unless the CIDR is one.
func networkPolicy(name string, generation int64, cidr string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: generation},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}},
		}}},
	}
}

// clusterPolicy can't be carried out.
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
	wrong      = "192.0.2.0"
	right      = "192.0.2.0/24"
	saidOfDB   = `Warning PartlyNotEnforced db: this can't be carried out, and allows nothing: ingress/0: ipBlock "192.0.2.0": netip.ParsePrefix("192.0.2.0"): no '/'`
	saidOfName = "Warning PartlyNotEnforced names: this can't be carried out: egress/0: domain names can't be peers; egress/0: the rule matches nothing"
)

func (w *world) create(np *networkingv1.NetworkPolicy) {
	w.t.Helper()
	if _, err := w.kube.NetworkingV1().NetworkPolicies(np.Namespace).Create(w.t.Context(), np, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) update(np *networkingv1.NetworkPolicy) {
	w.t.Helper()
	if _, err := w.kube.NetworkingV1().NetworkPolicies(np.Namespace).Update(w.t.Context(), np, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) createCluster(o *policyv1alpha2.ClusterNetworkPolicy) {
	w.t.Helper()
	if _, err := w.kinds.PolicyV1alpha2().ClusterNetworkPolicies().Create(w.t.Context(), o, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) learn(kind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lacks = !kind
}

// Once for each state of the spec, and once for each leader.
func TestFaultsAreSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(networkPolicy("sound", 1, right))
		_, stop := w.lead(config.ModeNetworkPolicy)
		w.says()
		w.create(networkPolicy("db", 1, wrong))
		w.says(saidOfDB)
		w.createCluster(clusterPolicy("names"))
		w.says(saidOfName)

		labeled := networkPolicy("db", 1, wrong)
		labeled.Labels = map[string]string{"team": "a"}
		w.update(labeled)
		time.Sleep(24 * time.Hour) //nolint:forbidigo // of the bubble
		w.says()
		w.update(networkPolicy("db", 2, wrong))
		w.says(saidOfDB)
		stop()

		_, stop = w.lead(config.ModeMultitenant)
		w.says(saidOfDB, saidOfName)
		w.update(networkPolicy("db", 3, right))
		w.says()
		reborn := networkPolicy("db", 3, wrong)
		reborn.UID = "another"
		w.update(reborn)
		w.says(saidOfDB)
		stop()
	})
}

// The newest policies of a namespace that has too many are reported, whatever makes them exceed the budget.
func TestPoliciesBeyondTheBudgetOfTheirNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		// Eleven of these fit into a namespace's budget.
		large := func(name string, age int, blocks int) *networkingv1.NetworkPolicy {
			np := networkPolicy(name, 1, right)
			np.CreationTimestamp = metav1.NewTime(time.Unix(int64(age), 0))
			for i := range blocks {
				block := &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.%d.%d/32", i>>8, i&0xff)}
				np.Spec.Ingress[0].From = append(np.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{IPBlock: block})
			}
			return np
		}
		for i := range 11 {
			w.create(large(fmt.Sprintf("np%02d", i), i, 4500))
		}
		_, stop := w.lead(config.ModeNetworkPolicy)
		w.says()
		const (
			report   = "Warning PartlyNotEnforced %s: this can't be carried out, and allows nothing: "
			beyond   = "the policies of the namespace are beyond its budget: the newest have no rules, this one among them; delete policies of the namespace, or give them fewer rules, peers and ports"
			tooLarge = "the policy is too large for its budget of 10000 flows, or has more than 10000 peers, ports and exceptions: it allows nothing; divide it or make it smaller"
		)
		w.create(large("newest", 20, 4500))
		w.says(fmt.Sprintf(report, "newest") + beyond)
		w.create(large("older", 5, 4500))
		w.says(fmt.Sprintf(report, "np10") + beyond)
		w.create(large("larger", 30, 6000))
		w.says(fmt.Sprintf(report, "larger")+tooLarge, fmt.Sprintf(report, "larger")+tooLarge+"; "+beyond)
		stop()
	})
}

func TestPoliciesHaveNoFaultsWhereNobodyIsJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(networkPolicy("db", 1, wrong))
		w.createCluster(clusterPolicy("names"))
		c, stop := w.lead(config.ModeSubnet)
		w.says()
		c.Follow(config.ModeNetworkPolicy)
		w.says(saidOfDB, saidOfName)
		c.Follow(config.ModeMultitenant)
		w.says()
		stop()
	})
}

func TestKindThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.learn(false)
		_, stop := w.lead(config.ModeNetworkPolicy)
		w.create(networkPolicy("db", 1, wrong))
		w.says(saidOfDB)
		w.learn(true)
		w.createCluster(clusterPolicy("names"))
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		w.says(saidOfName)
		stop()

		// One that does not come keeps nobody from ending.
		w.learn(false)
		_, stop = w.lead(config.ModeNetworkPolicy)
		w.says(saidOfDB)
		stop()
	})
}

// However many policies are wrong when a leader starts, the API server has time for other things, and none is passed over.
func TestManyFaultsTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const policies = 1000
		for i := range policies {
			w.createCluster(clusterPolicy(fmt.Sprint("cnp", i)))
		}
		_, stop := w.lead(config.ModeNetworkPolicy)
		count := func() int {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.said)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
		if n := count(); n < eventBurst+9*eventsPerSecond || n > eventBurst+10*eventsPerSecond {
			t.Errorf("%d Events in ten seconds", n)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		if n := count(); n != policies {
			t.Errorf("%d Events, want one for each of %d policies", n, policies)
		}
		stop()
	})
}

func TestMessagesFitIntoEvents(t *testing.T) {
	if got := shorten(saidOfDB); got != saidOfDB {
		t.Errorf("cut to %q", got)
	}
	for _, text := range []string{strings.Repeat("x", messageLength+1), strings.Repeat("…", messageLength), "x" + strings.Repeat("…", messageLength)} {
		got := shorten(text)
		if len(got) > messageLength || len(got) < messageLength-2 || !utf8.ValidString(got) || !strings.HasSuffix(got, "have the rest)") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}

// What is kept of a policy is checked with the same result, and is what an Event refers to.
func TestTrimLeavesWhatIsChecked(t *testing.T) {
	np := networkPolicy("db", 7, wrong)
	np.ResourceVersion, np.Annotations = "5", map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"}
	np.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	cnp := clusterPolicy("names")
	cnp.ManagedFields, cnp.Status.Conditions = np.ManagedFields, []metav1.Condition{{Type: "Accepted"}}
	wantNP := networkPolicy("db", 7, wrong)
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

// recorder is a record.EventRecorder that keeps what it is told.
type recorder struct{ *world }

func (r recorder) Event(about runtime.Object, typ, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf("%s %s %s: %s", typ, reason, about.(metav1.Object).GetName(), message))
}

func (r recorder) Eventf(about runtime.Object, typ, reason, format string, args ...any) {
	r.Event(about, typ, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(about runtime.Object, _ map[string]string, typ, reason, format string, args ...any) {
	r.Eventf(about, typ, reason, format, args...)
}

func (r recorder) WithLogger(klog.Logger) record.EventRecorderLogger { return r }
