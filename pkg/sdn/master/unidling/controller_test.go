package unidling

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	web  = `[{"kind":"Deployment","name":"web","group":"apps","replicas":2}]`
	both = `[{"kind":"Deployment","name":"web","group":"apps","replicas":2},{"kind":"StatefulSet","name":"db","replicas":3}]`
	woke = "Normal Unidled shop/web: a packet arrived for the idled service: "

	remain = "; the annotations of the Service remain until these objects are scaled"
)

// run runs a test in a bubble, with Deployment web and StatefulSet db without replicas in namespace shop. Service web has endpoints as soon as they are scaled.
func run(t *testing.T, test func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.replicas["shop/deployments/web"], c.replicas["shop/statefulsets/db"] = 0, 0
		c.ready("shop", "web", true)
		test(t, c)
	})
}

func TestController_packet(t *testing.T) {
	for name, objects := range map[string][]string{
		"Service": {"services"}, "Service and Endpoints": {"services", "endpoints"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(_ *testing.T, c *cluster) {
				defer c.lead()()
				for _, resource := range objects {
					c.idle(resource, "shop", "web", both)
				}
				c.wantEvents()
				c.packet("shop", "web", nil)
				c.wantEvents(woke + "scaled Deployment web to 2, StatefulSet db to 3")
				c.wantReplicas(map[string]int32{"shop/deployments/web": 2, "shop/statefulsets/db": 3})
				for _, resource := range objects {
					c.wantTargets(resource, "shop", "web")
				}
				c.packet("shop", "web", nil)
				c.wantEvents()
			})
		})
	}
}

// Earlier versions of `oc idle` wrote the annotations to the Endpoints only.
func TestController_endpointsOnly(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.must(c.metadata.Tracker().Create(corev1.SchemeGroupVersion.WithResource("services"), &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"},
		}, "shop"))
		c.idle("endpoints", "shop", "web", web)
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled Deployment web to 2")
		c.wantTargets("endpoints", "shop", "web")
	})
}

// A target with replicas, as after a user has scaled it, retains its number.
func TestController_alreadyScaled(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.replicas["shop/deployments/web"] = 7
		c.idle("services", "shop", "web", both)
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled StatefulSet db to 3")
		c.wantReplicas(map[string]int32{"shop/deployments/web": 7, "shop/statefulsets/db": 3})
		c.wantTargets("services", "shop", "web")
	})
}

// An Event that is older than the annotation, or than five minutes, wakes no service: neither does one that its sender dates into the future.
func TestController_oldEvent(t *testing.T) {
	at := func(d time.Duration) func(*corev1.Event) {
		return func(e *corev1.Event) {
			e.FirstTimestamp = metav1.NewTime(time.Now().Add(d))
			e.LastTimestamp = e.FirstTimestamp
		}
	}
	run(t, func(t *testing.T, c *cluster) {
		defer c.lead()()
		time.Sleep(time.Hour) //nolint:forbidigo // of the bubble
		c.idle("services", "shop", "web", web)
		c.packet("shop", "web", at(-time.Minute))
		c.packet("shop", "web", at(maxAhead+2*time.Second))
		time.Sleep(30 * time.Minute) //nolint:forbidigo // of the bubble
		c.packet("shop", "web", at(-maxAge-time.Second))
		c.wantEvents()
		c.wantLog(`"Ignored a packet from before the service was idled" "loop"="unidling" "key"="shop" "service"="web"`, 1)
		c.wantLog(`"Ignored an Event about a packet for an idled service" "service"="shop/web"`, 2)
		c.wantLog(syncClocks, 3)
		c.wantTargets("services", "shop", "web", "web")
		c.packet("shop", "web", at(-maxAge+time.Minute))
		c.wantEvents(woke + "scaled Deployment web to 2")
	})
}

// An Event in the series of an earlier one counts by its last time.
func TestController_repeatedEvent(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		defer c.lead()()
		c.packet("shop", "web", nil)
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		c.idle("services", "shop", "web", web)
		c.wantEvents()
		e, err := c.kube.CoreV1().Events("shop").Get(t.Context(), "event1", metav1.GetOptions{})
		c.must(err)
		e.Count, e.LastTimestamp = 2, metav1.Now()
		_, err = c.kube.CoreV1().Events("shop").Update(t.Context(), e, metav1.UpdateOptions{})
		c.must(err)
		c.wantEvents(woke + "scaled Deployment web to 2")
	})
}

// Users who may create Events in their own namespace wake no service of another.
func TestController_forgedEvent(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "shop", "web", web)
		defer c.lead()()
		for _, edit := range []func(*corev1.Event){
			func(e *corev1.Event) { e.InvolvedObject.Namespace = "shop" },
			func(e *corev1.Event) { e.InvolvedObject.Namespace, e.InvolvedObject.Name = "", "shop/web" },
		} {
			c.packet("attacker", "web", edit)
		}
		for _, edit := range []func(*corev1.Event){
			func(e *corev1.Event) { e.Source.Component = "kubelet" },
			func(e *corev1.Event) { e.Source.Component, e.ReportingController = "", "kubelet" },
			func(e *corev1.Event) { e.Reason = "Unhealthy" },
			func(e *corev1.Event) { e.InvolvedObject.Kind = "Pod" },
			func(e *corev1.Event) { e.InvolvedObject.APIVersion = "serving.knative.dev/v1" },
			func(e *corev1.Event) {
				e.FirstTimestamp, e.LastTimestamp = metav1.Time{}, metav1.Time{}
			},
		} {
			c.packet("shop", "web", edit)
		}
		c.wantEvents()
		c.wantTargets("services", "shop", "web", "web")
	})
}

// A list of a user reaches no object of another namespace.
func TestController_otherNamespace(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "attacker", "web", web)
		defer c.lead()()
		c.packet("attacker", "web", nil)
		c.wantEvents("Normal Unidled attacker/web: a packet arrived for the idled service: no longer exists: Deployment web")
		c.wantReplicas(map[string]int32{"shop/deployments/web": 0, "shop/statefulsets/db": 0})
		c.wantTargets("services", "attacker", "web", "web")
		time.Sleep(maxWait + pollInterval) //nolint:forbidigo // of the bubble
		c.wantTargets("services", "attacker", "web")
	})
}

func TestController_invalidTargets(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "shop", "web", `[{"kind":"Deployment","name":"web","replicas":1000000}]`)
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents("Warning UnidleFailed shop/web: annotation idling.alpha.openshift.io/unidle-targets: [0]: 1000000 replicas of Deployment web: write 1 to 1000")
		c.wantReplicas(map[string]int32{"shop/deployments/web": 0, "shop/statefulsets/db": 0})
	})
}

// Targets that fail remain in the annotation, and are scaled after a later packet.
func TestController_failingTarget(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "statefulsets/scale"}, "db", errors.New("no right"))
		c.fail("shop/statefulsets/db", forbidden)
		c.idle("services", "shop", "web", both)
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(woke+"scaled Deployment web to 2", "Warning UnidleFailed shop/web: scale StatefulSet db to 3: "+forbidden.Error()+
			"; add the kind's scale to ClusterRole ovsdn-unidling, or scale the objects by hand and remove the annotations of the Service")
		c.wantTargets("services", "shop", "web", "db")
		time.Sleep(failureLifetime) //nolint:forbidigo // of the bubble
		c.fail("shop/statefulsets/db", nil)
		c.wantEvents()
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled StatefulSet db to 3")
		c.wantReplicas(map[string]int32{"shop/deployments/web": 2, "shop/statefulsets/db": 3})
		c.wantTargets("services", "shop", "web")
	})
}

func TestController_unknownKind(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "shop", "web", `[{"kind":"Rollout","name":"web","group":"argoproj.io","replicas":1}]`)
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(`Warning UnidleFailed shop/web: scale Rollout web to 1: no matches for kind "Rollout" in group "argoproj.io"` +
			"; correct the kind and the group in the annotation, or scale the objects by hand and remove the annotations of the Service")
	})
}

// The end of the message has the remedy, however many objects fail.
func TestController_manyFailures(t *testing.T) {
	run(t, func(_ *testing.T, c *cluster) {
		var targets []string
		for i := range 20 {
			targets = append(targets, fmt.Sprintf(`{"kind":"Rollout","name":"%s%d","group":"argoproj.io","replicas":1}`, strings.Repeat("x", 100), i))
		}
		c.idle("services", "shop", "web", "["+strings.Join(targets, ",")+"]")
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.settle()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.events) != 1 || !strings.HasSuffix(c.events[0], "and remove the annotations of the Service") || len(c.events[0]) > 1_050 {
			c.t.Errorf("got Events %q, want one that ends with what to do", c.events)
		}
	})
}

// A failure that may be temporary is retried without another packet, reported once, and given up when the packet is old.
func TestController_retries(t *testing.T) {
	for name, ends := range map[string]bool{"ends": true, "remains": false} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, c *cluster) {
				c.fail("shop/deployments/web", apierrors.NewTooManyRequests("wait", 1))
				c.idle("services", "shop", "web", web)
				defer c.lead()()
				c.packet("shop", "web", nil)
				c.wantEvents("Warning UnidleFailed shop/web: scale Deployment web to 2: wait" + remain)
				time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
				c.wantEvents()
				if ends {
					c.fail("shop/deployments/web", nil)
					time.Sleep(maxBackoff) //nolint:forbidigo // of the bubble
					c.wantEvents(woke + "scaled Deployment web to 2")
					return
				}
				time.Sleep(maxAge) //nolint:forbidigo // of the bubble
				c.fail("shop/deployments/web", nil)
				time.Sleep(maxAge) //nolint:forbidigo // of the bubble
				c.wantEvents()
			})
		})
	}
}

// Agents hold packets as long as the Service has the annotations: they remain until its pods are ready.
func TestController_endpoints(t *testing.T) {
	for name, starts := range map[string]bool{"ready": true, "never ready": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.replicas["shop/deployments/web"] = 0
				c.ready("shop", "web", false)
				c.idle("services", "shop", "web", web)
				defer c.lead()()
				c.packet("shop", "web", nil)
				c.wantEvents(woke + "scaled Deployment web to 2")
				c.packet("shop", "web", nil)
				time.Sleep(maxWait - 2*pollInterval) //nolint:forbidigo // of the bubble
				c.wantTargets("services", "shop", "web", "web")
				if starts {
					c.ready("shop", "web", true)
				} else {
					time.Sleep(pollInterval) //nolint:forbidigo // of the bubble
				}
				time.Sleep(pollInterval) //nolint:forbidigo // of the bubble
				c.wantTargets("services", "shop", "web")
				c.wantEvents()
			})
		})
	}
}

// A service that is idled again before its pods are ready is woken again.
func TestController_idledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.replicas["shop/deployments/web"] = 0
		c.idle("services", "shop", "web", web)
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled Deployment web to 2")
		time.Sleep(2 * time.Second) //nolint:forbidigo // of the bubble
		c.mu.Lock()
		c.replicas["shop/deployments/web"] = 0
		c.mu.Unlock()
		c.idle("services", "shop", "web", web)
		time.Sleep(2 * time.Second) //nolint:forbidigo // of the bubble
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled Deployment web to 2")
		c.wantReplicas(map[string]int32{"shop/deployments/web": 2})
	})
}

// Another client changes the Service between the read and the write.
func TestController_conflict(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "shop", "web", web)
		c.conflict = true
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled Deployment web to 2")
		c.wantTargets("services", "shop", "web")
	})
}

// A new leader reads Events from before its term.
func TestController_restart(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "shop", "web", web)
		c.packet("shop", "web", nil)
		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
		stop := c.lead()
		c.wantEvents(woke + "scaled Deployment web to 2")
		stop()

		time.Sleep(time.Second) //nolint:forbidigo // of the bubble
		c.replicas["shop/deployments/web"] = 0
		c.idle("services", "shop", "web", web) // after the packet
		defer c.lead()()
		c.wantEvents()
		c.wantReplicas(map[string]int32{"shop/deployments/web": 0, "shop/statefulsets/db": 0})
	})
}

// Any number of Events of one namespace does not delay the services of another.
func TestController_manyEvents(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.idle("services", "shop", "web", web)
		for i := range 10 * namespaceBurst {
			c.packet("attacker", fmt.Sprint("service", i), nil)
		}
		defer c.lead()()
		c.packet("shop", "web", nil)
		c.wantEvents(woke + "scaled Deployment web to 2")
		reads := 0
		for _, a := range c.metadata.Actions() {
			if a.Matches("get", "services") && a.GetNamespace() == "attacker" {
				reads++
			}
		}
		if most := 2 * namespaceBurst; reads > most {
			t.Errorf("got %d reads of the namespace's services, want at most %d", reads, most)
		}
	})
}
