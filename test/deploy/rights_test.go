package deploy

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/await"
)

// admissionPatience is the time in which the API server activates its policies.
const admissionPatience = 3 * time.Minute

// request is one request of a program, and whether it has a right to it.
type request struct {
	name    string
	do      func(context.Context, as) error
	refused bool
}

func allowed(name string, do func(context.Context, as) error) request {
	return request{name, do, false}
}
func refused(name string, do func(context.Context, as) error) request { return request{name, do, true} }

func (r request) check(t *testing.T, client as) {
	t.Run(r.name, func(t *testing.T) {
		err := r.do(t.Context(), client)
		switch {
		case r.refused && !apierrors.IsForbidden(err):
			t.Errorf("it is not refused: %v", err)
		case r.refused:
			t.Log(err)
		case err != nil:
			t.Error(err)
		}
	})
}

// awaitAdmission returns when the policies refuse the requests: they are active some time after their creation.
func awaitAdmission(t *testing.T, client as, requests ...request) {
	t.Helper()
	await.OK(t, admissionPatience, func(ctx context.Context) error {
		// A client without rights is refused everything.
		if _, err := client.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return fmt.Errorf("its rights are not active: %w", err)
		}
		for _, r := range requests {
			if err := r.do(ctx, client); !apierrors.IsForbidden(err) {
				return fmt.Errorf("%s: it is not refused, but %s", r.name, fmt.Sprint(err))
			}
		}
		return nil
	})
}

// reads are lists and watches.
func reads(refuse bool, kinds ...string) []request {
	return append(verb("list", refuse, kinds...), verb("watch", refuse, kinds...)...)
}

// verb are requests with one verb for all objects of the kinds.
func verb(verb string, refuse bool, kinds ...string) []request {
	var all []request
	for _, kind := range kinds {
		all = append(all, request{verb + " " + kind, func(ctx context.Context, client as) error {
			body, err := client.kube.CoreV1().RESTClient().Get().AbsPath(kind).Param("watch", strconv.FormatBool(verb == "watch")).Stream(ctx)
			if err != nil {
				return err
			}
			return body.Close() // that it begins is enough
		}, refuse})
	}
	return all
}

// nobodys are what neither program may do.
func nobodys() []request {
	return append(reads(true, "/api/v1/secrets", "/api/v1/namespaces/ovsdn-system/secrets", "/api/v1/configmaps", "/api/v1/serviceaccounts"),
		refused("read a secret", func(ctx context.Context, client as) error {
			_, err := client.kube.CoreV1().Secrets(system).Get(ctx, "secret", metav1.GetOptions{})
			return err
		}),
		refused("make a pod", func(ctx context.Context, client as) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
			_, err := client.kube.CoreV1().Pods(system).Create(ctx, pod, metav1.CreateOptions{})
			return err
		}),
		refused("change a pod", func(ctx context.Context, client as) error {
			_, err := client.kube.CoreV1().Pods(system).Patch(ctx, "agent-on-node1", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			return err
		}),
		refused("change a pod's status", func(ctx context.Context, client as) error {
			_, err := client.kube.CoreV1().Pods(system).Patch(ctx, "agent-on-node1", types.MergePatchType, []byte(`{"status":{"podIP":"10.0.0.1"}}`), metav1.PatchOptions{}, "status")
			return err
		}),
		refused("delete a pod", func(ctx context.Context, client as) error {
			return client.kube.CoreV1().Pods(system).Delete(ctx, "agent-on-node1", metav1.DeleteOptions{})
		}),
		refused("run a program in a pod", func(ctx context.Context, client as) error {
			return client.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(system).Name("agent-on-node1").SubResource("exec").Do(ctx).Error()
		}),
		refused("change a Node", patchNode),
		refused("delete a Node", func(ctx context.Context, client as) error {
			return client.kube.CoreV1().Nodes().Delete(ctx, "node2", metav1.DeleteOptions{})
		}),
		refused("get a token", func(ctx context.Context, client as) error {
			_, err := client.kube.CoreV1().ServiceAccounts(system).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		}),
		refused("delete the policy", func(ctx context.Context, client as) error {
			return client.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "ovsdn-status", metav1.DeleteOptions{})
		}),
	)
}

func TestAgentWritesOnlyWhatConcernsItsOwnNode(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	c := newCluster(t)
	agent := c.as(t, "ovsdn-node", "agent-on-node1")
	c.addCertificateObjects(t)
	must(t, writeConfigMap(controllerAuthority, "create")(t.Context(), c.admin))
	awaitAdmission(t, agent,
		refused("another Node's status", patchStatus("node2", condition(corev1.NodeNetworkUnavailable, "NotMine"))),
		refused("another node's DNS names", varied(func(n string) func(context.Context, as) error {
			return patchEgressStatus(`{"status":{"nodes":{"node2":{"error":"` + n + `"}}}}`)
		})),
		refused("kubelet's Event", createEvent(event("early", "kubelet", "node1", "Node", "node1"))),
		refused("another signer", requestCertificate("kubernetes.io/kube-apiserver-client", annotated("early"))))

	requests := slices.Concat(
		reads(false,
			"/apis/network.openshift.io/v1/clusternetworks", "/apis/network.openshift.io/v1/hostsubnets", "/apis/network.openshift.io/v1/netnamespaces",
			"/apis/network.openshift.io/v1/egressnetworkpolicies",
			"/api/v1/pods", "/api/v1/services", "/api/v1/namespaces", "/api/v1/nodes", "/apis/networking.k8s.io/v1/networkpolicies",
			"/apis/discovery.k8s.io/v1/endpointslices",
			"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"),
		nobodys(),
		[]request{
			allowed("set its Node's condition", patchStatus("node1", condition(corev1.NodeNetworkUnavailable, "Ready"))),
			refused("set another Node's condition", patchStatus("node2", condition(corev1.NodeNetworkUnavailable, "NotMine"))),
			refused("call its Node unready", patchStatus("node1", condition(corev1.NodeReady, "NotMine"))),
			refused("add a condition of another kind", patchStatus("node1", condition("Rooted", "NotMine"))),
			refused("move its Node", patchStatus("node1", map[string]any{"status": map[string]any{"addresses": []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.66"}}}})),
			refused("set its Node's phase", patchStatus("node1", map[string]any{"status": map[string]any{"phase": corev1.NodeTerminated}})),
			refused("enlarge its Node", patchStatus("node1", map[string]any{"status": map[string]any{"capacity": map[string]string{"cpu": "1000"}}})),
			refused("label its Node by the way of its status", patchStatus("node1", map[string]any{"metadata": map[string]any{"labels": map[string]string{"zone": "b"}}})),
			refused("annotate its Node by the way of its status", patchStatus("node1", map[string]any{"metadata": map[string]any{"annotations": map[string]string{"a": "b"}}})),

			allowed("review a token", reviewToken),
			allowed("review a right", reviewRight),
			refused("scrape metrics", getMetrics),
			allowed("request a serving certificate", requestCertificate("ovsdn.io/agent-serving", nil)),
			refused("request a certificate of another signer", requestCertificate("kubernetes.io/kube-apiserver-client", nil)),
			refused("request a certificate with large annotations", requestCertificate("ovsdn.io/agent-serving", annotated(strings.Repeat("x", 100_000)))),
			refused("request a certificate with a finalizer", requestCertificate("ovsdn.io/agent-serving", withFinalizer)),
			refused("request a certificate with an owner", requestCertificate("ovsdn.io/agent-serving", withOwner)),
			refused("approve a request", approveCertificate),
			allowed("read the authority", readAuthority),
			refused("read the key of the authority", readAuthorityKey),
			refused("change the authority", writeConfigMap(controllerAuthority, "update")),

			allowed("create an Event on its Node", createEvent(event("own", "ovsdn-node", "node1", "Node", "node1"))),
			allowed("create an Event on a pod", createEvent(event("pod", "ovsdn-node", "node1", "Pod", "p"))),
			allowed("create an Event on a Service", createEvent(event("service", "ovsdn-node", "node1", "Service", "s"))),
			allowed("create an Event on an EgressNetworkPolicy", createEvent(event("egress-policy", "ovsdn-node", "node1", "EgressNetworkPolicy", "default"))),
			allowed("update its Event", patchEvent("own")),
			refused("create an Event on another Node", createEvent(event("other", "ovsdn-node", "node1", "Node", "node2"))),
			refused("create an Event as another agent", createEvent(event("as-other", "ovsdn-node", "node2", "Node", "node1"))),
			refused("create an Event as kubelet", createEvent(event("as-kubelet", "kubelet", "node1", "Node", "node1"))),
			refused("create an Event on another kind", createEvent(event("secret", "ovsdn-node", "node1", "Secret", "secret"))),
			refused("change kubelet's Event", patchEvent("kubelet.node1")),
			refused("report in another agent's name", createEvent(editedEvent("as-instance", func(e *corev1.Event) { e.ReportingInstance = "node2" }))),
			refused("report as kubelet", createEvent(editedEvent("as-component", func(e *corev1.Event) { e.ReportingController = "kubelet" }))),
			refused("report without a name", createEvent(editedEvent("without-sender", func(e *corev1.Event) { e.ReportingController, e.ReportingInstance = "", "" }))),
			refused("name a related object", createEvent(editedEvent("related", func(e *corev1.Event) {
				e.Related = &corev1.ObjectReference{Kind: "Node", Name: "node2"}
			}))),
			allowed("report on its HostSubnet", createEvent(event("subnet", "ovsdn-node", "node1", "HostSubnet", "node1"))),
			refused("report on another HostSubnet", createEvent(event("other-subnet", "ovsdn-node", "node1", "HostSubnet", "node2"))),
			allowed("update its Event", updateEvent("own", func(e *corev1.Event) { e.Count = 3 })),
			refused("update it to another sender", updateEvent("own", func(e *corev1.Event) { e.ReportingInstance = "node2" })),
			refused("report by the other API group", newEvent),
			refused("delete an Event", func(ctx context.Context, client as) error {
				return client.kube.CoreV1().Events(metav1.NamespaceDefault).Delete(ctx, "kubelet.node1", metav1.DeleteOptions{})
			}),
			refused("annotate a pod of another node", annotatePod),

			allowed("report DNS names of an EgressNetworkPolicy", patchEgressStatus(`{"status":{"nodes":{"node1":{"error":"x"}}}}`)),
			refused("report DNS names of another node", patchEgressStatus(`{"status":{"nodes":{"node2":{"error":"x"}}}}`)),
			refused("summarize the DNS errors of an EgressNetworkPolicy", patchEgressStatus(`{"status":{"dnsErrors":"x"}}`)),
			refused("set the conditions of an EgressNetworkPolicy", patchEgressStatus(`{"status":{"conditions":[{"type":"Accepted","status":"True","reason":"X","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)),

			refused("write its own HostSubnet", writeHostSubnet("node1")),
			refused("write another node's HostSubnet", writeHostSubnet("node2")),
			refused("make a HostSubnet", func(ctx context.Context, client as) error {
				_, err := client.network.NetworkV1().HostSubnets().Create(ctx,
					&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "node9"}, Host: "node9", HostIP: "192.0.2.9", Subnet: "10.128.4.0/23"}, metav1.CreateOptions{})
				return err
			}),
			refused("delete another node's HostSubnet", func(ctx context.Context, client as) error {
				return client.network.NetworkV1().HostSubnets().Delete(ctx, "node2", metav1.DeleteOptions{})
			}),
			refused("change a VNID", func(ctx context.Context, client as) error {
				_, err := client.network.NetworkV1().NetNamespaces().Patch(ctx, "default", types.MergePatchType, []byte(`{"netid":7}`), metav1.PatchOptions{})
				return err
			}),
			refused("ask for a change of a network", annotate("default", changeAnnotation, "global")),
			refused("record a VNID", annotate("default", assignedAnnotation, "0")),
			refused("take the controllers' lease", func(ctx context.Context, client as) error {
				_, err := client.kube.CoordinationV1().Leases(system).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "ovsdn-controller"}}, metav1.CreateOptions{})
				return err
			}),
		})
	for _, r := range requests {
		r.check(t, agent)
	}
	// A token that was not made for a pod names no node.
	refused("with a token of nowhere", patchStatus("node1", condition(corev1.NodeNetworkUnavailable, "Nowhere"))).check(t, c.as(t, "ovsdn-node", ""))
	allowed("the agent of the other node", patchStatus("node2", condition(corev1.NodeNetworkUnavailable, "Ready"))).check(t, c.as(t, "ovsdn-node", "agent-on-node2"))
}

func TestControllerHasTheRightsThatItNeedsAndNoOthers(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	c := newCluster(t)
	c.addPod(t, "node1", "controller", "ovsdn-controller")
	controller := c.as(t, "ovsdn-controller", "controller")
	c.addCertificateObjects(t)
	awaitAdmission(t, controller, refused("another condition", varied(func(n string) func(context.Context, as) error {
		return patchStatus("node2", condition(corev1.NodeReady, "NotMine"+n))
	})),
		refused("another Secret", createSecret("early", corev1.SecretTypeTLS)))
	await.OK(t, admissionPatience, func(ctx context.Context) error { // rights in one namespace come by themselves
		_, err := controller.kube.CoordinationV1().Leases(system).Get(ctx, "ovsdn-controller", metav1.GetOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			err = listAPIServers(ctx, controller)
		}
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("its rights are not active: %w", err)
		}
		return nil
	})
	lease := func(name string) func(context.Context, as) error {
		return func(ctx context.Context, client as) error {
			_, err := client.kube.CoordinationV1().Leases(system).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"holderIdentity":"me"}}`), metav1.PatchOptions{})
			return err
		}
	}
	requests := slices.Concat(
		reads(false,
			"/apis/network.openshift.io/v1/clusternetworks", "/apis/network.openshift.io/v1/hostsubnets", "/apis/network.openshift.io/v1/netnamespaces",
			"/apis/network.openshift.io/v1/egressnetworkpolicies", "/api/v1/namespaces", "/api/v1/nodes", "/apis/networking.k8s.io/v1/networkpolicies",
			"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"),
		verb("list", false, "/api/v1/pods", "/api/v1/services"), // of verifications
		verb("watch", true, "/api/v1/pods", "/api/v1/services"),
		nobodys(),
		[]request{
			allowed("read a pod of a trace", readPod),
			allowed("list endpoints of a trace", func(ctx context.Context, client as) error {
				_, err := client.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
				return err
			}),
			refused("watch endpoints", func(ctx context.Context, client as) error {
				w, err := client.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
				if err == nil {
					w.Stop()
				}
				return err
			}),
			allowed("make the ClusterNetwork", func(ctx context.Context, client as) error {
				port := uint32(4789)
				_, err := client.network.NetworkV1().ClusterNetworks().Create(ctx, &networkv1.ClusterNetwork{
					ObjectMeta: metav1.ObjectMeta{Name: "default"}, Network: "10.128.0.0/14", HostSubnetLength: 9, ServiceNetwork: "172.30.0.0/16",
					PluginName: "redhat/openshift-ovs-subnet", VXLANPort: &port,
					ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
				}, metav1.CreateOptions{})
				return err
			}),
			allowed("set the conditions of an EgressNetworkPolicy", patchEgressStatus(`{"status":{"conditions":[],"dnsErrors":"x"}}`)),
			allowed("set the conditions of the ClusterNetwork", func(ctx context.Context, client as) error {
				_, err := client.network.NetworkV1().ClusterNetworks().Patch(ctx, "default", types.MergePatchType, []byte(`{"metadata":{"annotations":{"ovsdn.io/conditions":"[]"}}}`), metav1.PatchOptions{})
				return err
			}),
			refused("delete the ClusterNetwork", func(ctx context.Context, client as) error {
				return client.network.NetworkV1().ClusterNetworks().Delete(ctx, "default", metav1.DeleteOptions{})
			}),
			allowed("change a HostSubnet", func(ctx context.Context, client as) error {
				o, err := client.network.NetworkV1().HostSubnets().Get(ctx, "node1", metav1.GetOptions{})
				if err != nil {
					return err
				}
				o.HostIP = "192.0.2.9"
				_, err = client.network.NetworkV1().HostSubnets().Update(ctx, o, metav1.UpdateOptions{})
				return err
			}),
			allowed("delete a HostSubnet", func(ctx context.Context, client as) error {
				return client.network.NetworkV1().HostSubnets().Delete(ctx, "node2", metav1.DeleteOptions{})
			}),
			allowed("delete a NetNamespace", func(ctx context.Context, client as) error {
				return client.network.NetworkV1().NetNamespaces().Delete(ctx, "default", metav1.DeleteOptions{})
			}),
			allowed("make a NetNamespace", func(ctx context.Context, client as) error {
				_, err := client.network.NetworkV1().NetNamespaces().Create(ctx,
					&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}, NetName: "default"}, metav1.CreateOptions{})
				return err
			}),
			allowed("review a token", reviewToken),
			allowed("review a right", reviewRight),
			allowed("read the addresses of kube-apiservers", listAPIServers),
			allowed("record a VNID", annotate("default", assignedAnnotation, "0")),
			allowed("refuse a change", annotate("default", changeAnnotation, "refused:isolate")),
			allowed("change the record", annotate("default", assignedAnnotation, "4242")),
			allowed("set a Node's condition", patchStatus("node2", condition(corev1.NodeNetworkUnavailable, "NoHostSubnet"))),
			refused("call a Node unready", patchStatus("node1", condition(corev1.NodeReady, "NotMine"))),
			refused("label a Node by the way of its status", patchStatus("node1", map[string]any{"metadata": map[string]any{"labels": map[string]string{"zone": "b"}}})),
			allowed("create an Event on a Node", createEvent(event("node", "ovsdn-controller", "", "Node", "node1"))),
			allowed("create an Event on a policy", createEvent(event("policy", "ovsdn-controller", "", "ClusterNetworkPolicy", "deny"))),
			refused("change a NetworkPolicy", patchKind("/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/open")),
			refused("change a ClusterNetworkPolicy", patchKind("/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/deny")),
			allowed("make its lease", func(ctx context.Context, client as) error {
				_, err := client.kube.CoordinationV1().Leases(system).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "ovsdn-controller"}}, metav1.CreateOptions{})
				return err
			}),
			allowed("renew its lease", func(ctx context.Context, client as) error {
				o, err := client.kube.CoordinationV1().Leases(system).Get(ctx, "ovsdn-controller", metav1.GetOptions{})
				if err != nil {
					return err
				}
				me := "me"
				o.Spec.HolderIdentity = &me
				_, err = client.kube.CoordinationV1().Leases(system).Update(ctx, o, metav1.UpdateOptions{})
				return err
			}),
			refused("take another lease", lease("kube-scheduler")),
			allowed("create the key of the authority", createSecret(controllerAuthority, corev1.SecretTypeTLS)),
			allowed("read the key of the authority", readAuthorityKey),
			refused("create another Secret", createSecret("other", corev1.SecretTypeTLS)),
			refused("create a token of another account", createSecret(controllerAuthority, corev1.SecretTypeServiceAccountToken)),
			allowed("publish the authority", writeConfigMap(controllerAuthority, "create")),
			allowed("change the authority", writeConfigMap(controllerAuthority, "update")),
			refused("change another ConfigMap", writeConfigMap("other", "update")),
			allowed("set the authority of the APIService", patchAPIService("v1alpha1.diagnostics.ovsdn.io")),
			refused("change another APIService", patchAPIService("v1.apps")),
			allowed("approve a request of an agent", approveCertificate),
			refused("approve a request of another signer", approveKubelet),
			refused("request a certificate", requestCertificate("ovsdn.io/agent-serving", nil)),
			allowed("read the names of the front proxy", readFrontProxy),
		})
	for _, r := range requests {
		r.check(t, controller)
	}
}

// listAPIServers lists the EndpointSlice of kube-apiservers, as an informer of this object does.
func listAPIServers(ctx context.Context, client as) error {
	_, err := client.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kubernetes"})
	return err
}
