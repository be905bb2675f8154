package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The kinds of a report: an Event on an object of that kind, or the condition of a Node or of the ClusterNetwork.
const (
	eventOnNode           = "Node"
	eventOnPod            = "Pod"
	eventOnHostSubnet     = "HostSubnet"
	eventOnNetNamespace   = "NetNamespace"
	eventOnClusterNetwork = "ClusterNetwork"
	nodeCondition         = "NodeCondition"
	acceptedCondition     = "Accepted"
)

// faults returns the faults of the host, then those of the API.
func faults() []fault {
	return append(hostFaults(), apiFaults()...)
}

func hostFaults() []fault {
	rebuilt := onNode("PodPortsRebuilt", "rebuilt them with the same addresses")
	return []fault{
		{name: "br0 deleted", away: true, inject: deleteBridge, visible: rebuilt},
		{name: "conf.db lost", away: true, inject: loseDatabase, visible: rebuilt},
		{name: "a port deleted", inject: deletePort, visible: rebuilt},
		{name: "a veth deleted", away: true, lossless: true, prepare: startVictim, inject: deleteVeth, visible: func(m *faultMatrix, _ bool) []report {
			return []report{{eventOnPod, m.victim, "NetworkInterfaceDeleted", []string{"delete the pod"}}}
		}},
		{name: "leases lost", lossless: true, inject: loseLeases, visible: onNode("AddressLeasesRestored")},
		{name: "CNI configuration deleted", lossless: true, inject: deleteCNIConfiguration, visible: onNode("CNIFilesWritten", cniConf)},
		{name: "run directory of the agent emptied", lossless: true, inject: emptyRun, visible: func(_ *faultMatrix, away bool) []report {
			if away { // the agent creates the socket whenever it starts: nothing was lost
				return []report{{eventOnNode, fixture.Node1, "NetworkReady", nil}}
			}
			return []report{{eventOnNode, fixture.Node1, "CNISocketRestored", nil}}
		}},
		{name: "run directory of Open vSwitch emptied", inject: emptySwitchRun, undo: restartSwitch,
			visible: func(_ *faultMatrix, away bool) []report {
				if away {
					return []report{{eventOnNode, fixture.Node1, "NetworkSetupFailed", []string{"Open vSwitch"}}, {nodeCondition, fixture.Node1, config.ReasonNotReady, []string{"Open vSwitch"}}}
				}
				return []report{{eventOnNode, fixture.Node1, "OpenvSwitchSocketsMissing", []string{"restart ovsdb-server and ovs-vswitchd"}}}
			},
			waits: func(_ *faultMatrix, away bool) *report {
				if away {
					return &report{kind: eventOnPod, words: []string{"Open vSwitch"}}
				}
				return nil
			}},
	}
}

func onNode(reason string, words ...string) func(*faultMatrix, bool) []report {
	return func(*faultMatrix, bool) []report { return []report{{eventOnNode, fixture.Node1, reason, words}} }
}

func apiFaults() []fault {
	return []fault{
		{name: "own HostSubnet invalid", lossless: true, inject: breakHostSubnet(fixture.Node1), undo: restoreHostSubnet(fixture.Node1),
			visible: func(_ *faultMatrix, away bool) []report {
				reports := []report{{eventOnNode, fixture.Node1, "InvalidHostSubnet", []string{"write back"}}, {eventOnNode, fixture.Node1, "NetworkWaiting", []string{"HostSubnet " + fixture.Node1}}}
				if away {
					reports = append(reports, report{nodeCondition, fixture.Node1, config.ReasonNotReady, []string{"HostSubnet " + fixture.Node1}})
				}
				return reports
			},
			waits: func(_ *faultMatrix, away bool) *report {
				if away {
					return &report{kind: eventOnPod, words: []string{"HostSubnet " + fixture.Node1}}
				}
				return nil
			}},
		{name: "another node's HostSubnet invalid", away: false, lossless: true, inject: breakHostSubnet(fixture.Node2), undo: restoreHostSubnet(fixture.Node2),
			visible: func(*faultMatrix, bool) []report {
				return []report{{eventOnNode, fixture.Node2, "InvalidHostSubnet", []string{"HostSubnet " + fixture.Node2, "write back"}}}
			}},
		{name: "NetNamespace invalid", away: true, lossless: true, inject: breakNetNamespace, undo: restoreNetNamespace, visible: func(m *faultMatrix, _ bool) []report {
			return []report{{eventOnNetNamespace, m.namespace, "InvalidNetNamespace", nil}}
		}},
		{name: "ClusterNetwork invalid", lossless: true, inject: breakClusterNetwork, undo: restoreClusterNetwork,
			visible: func(*faultMatrix, bool) []report {
				return []report{
					{eventOnClusterNetwork, networkv1.ClusterNetworkDefault, "InvalidClusterNetwork", []string{"still active:"}},
					{acceptedCondition, networkv1.ClusterNetworkDefault, config.ReasonInvalid, []string{"still active:"}},
				}
			}},
	}
}

func deleteBridge(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "ovs-vsctl", "--timeout=20", "del-br", "br0")
}

// loseDatabase deletes conf.db and starts Open vSwitch again as a host does, which creates an empty one.
func loseDatabase(t *testing.T, m *faultMatrix) {
	m.service(t, fixture.Node1, vswitchdService, (*lab.Service).Stop)
	m.service(t, fixture.Node1, databaseService, (*lab.Service).Stop)
	m.Output(t, fixture.Node1, "rm", "/etc/openvswitch/conf.db")
	m.runTask(t, fixture.Node1, "ovsdb")
	m.service(t, fixture.Node1, databaseService, (*lab.Service).Start)
	m.databaseServes(t)
	m.runTask(t, fixture.Node1, "ovs-init")
	m.service(t, fixture.Node1, vswitchdService, (*lab.Service).Start)
	m.restoreUnderlay(t, fixture.Node1)
}

// databaseServes waits until ovs-vsctl gets an answer.
func (m *faultMatrix) databaseServes(t *testing.T) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "ovsdb-server answers", func(ctx context.Context) error {
		_, err := m.TryOutput(ctx, fixture.Node1, "ovs-vsctl", "--no-wait", "--timeout=1", "show")
		return err
	})
}

func deletePort(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "ovs-vsctl", "--timeout=20", "del-port", m.port(t, m.a))
}

// startVictim starts a pod that no other cell needs: deleteVeth deletes its interface.
func startVictim(t *testing.T, m *faultMatrix) {
	m.victim = fmt.Sprintf("victim-%d", m.count)
	m.victimVeth = m.port(t, m.Run(t, m.namespace, fixture.Netexec(m.victim, fixture.Node1))[0])
}

func deleteVeth(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "ip", "link", "delete", m.victimVeth)
}

func loseLeases(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "rm", "-r", "/var/lib/cni/networks/ovsdn")
}

func deleteCNIConfiguration(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "rm", cniConf)
}

// emptyRun deletes the agent's files in /run. Those of the container runtime, such as network namespaces, can't be restored by the agent.
func emptyRun(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "find", "/run/ovsdn", "-mindepth", "1", "-delete")
}

func emptySwitchRun(t *testing.T, m *faultMatrix) {
	m.Output(t, fixture.Node1, "find", "/run/openvswitch", "-mindepth", "1", "-delete")
}

// restartSwitch restarts Open vSwitch, which creates its sockets again.
func restartSwitch(t *testing.T, m *faultMatrix) {
	m.service(t, fixture.Node1, databaseService, (*lab.Service).Restart)
	m.databaseServes(t)
	m.service(t, fixture.Node1, vswitchdService, (*lab.Service).Restart)
	m.restoreUnderlay(t, fixture.Node1)
}

func breakHostSubnet(node string) func(*testing.T, *faultMatrix) {
	return func(t *testing.T, m *faultMatrix) {
		m.subnets[node] = m.Subnet(t, node).String()
		m.editHostSubnet(t, node, map[string]string{"subnet": "192.168.0.0/23"})
	}
}

func restoreHostSubnet(node string) func(*testing.T, *faultMatrix) {
	return func(t *testing.T, m *faultMatrix) {
		m.editHostSubnet(t, node, map[string]string{"subnet": m.subnets[node]})
	}
}

// reservedVNID is a netid that is not a VNID.
const reservedVNID = 5

func breakNetNamespace(t *testing.T, m *faultMatrix) {
	var err error
	if m.netID, err = m.VNID(t.Context(), m.namespace); err != nil {
		t.Fatal(err)
	}
	m.writeNetID(t, reservedVNID)
}

func restoreNetNamespace(t *testing.T, m *faultMatrix) { m.writeNetID(t, m.netID) }

func (m *faultMatrix) writeNetID(t *testing.T, vnid uint32) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"netid":%d}`, vnid)
	if _, err := m.Network.NetworkV1().NetNamespaces().Patch(t.Context(), m.namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// breakClusterNetwork sets the pods' range to the service network.
func breakClusterNetwork(t *testing.T, m *faultMatrix) {
	m.haveRanges(t, m.Shape().ServiceNetwork.String())
}

func restoreClusterNetwork(t *testing.T, m *faultMatrix) {
	m.haveRanges(t, m.Shape().ClusterNetwork.String())
}

// reported waits until the Event or the condition exists.
func (m *faultMatrix) reported(t *testing.T, r report) {
	t.Helper()
	look := m.event
	switch r.kind {
	case nodeCondition:
		look = m.nodeCondition
	case acceptedCondition:
		look = m.acceptedCondition
	}
	fixture.Eventually(t, fixture.ProgramTime, fmt.Sprintf("%s %s reports %s with %q", r.kind, r.name, r.reason, r.words), func(ctx context.Context) error { return look(ctx, r) })
}

// warned waits until node1 has an Event, of whatever time.
func (c *cluster) warned(t *testing.T, reason string, words ...string) {
	t.Helper()
	(&faultMatrix{cluster: c}).reported(t, report{eventOnNode, fixture.Node1, reason, words})
}

func (m *faultMatrix) event(ctx context.Context, r report) error {
	events, err := m.Kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + r.kind + ",involvedObject.name=" + r.name})
	if err != nil {
		return err
	}
	var others []string
	for _, e := range events.Items {
		// Events have whole seconds.
		if e.LastTimestamp.Unix() < m.began.Unix() {
			continue
		}
		if (r.reason == "" || r.reason == e.Reason) && fixture.ContainsAll(e.Message, r.words) {
			return nil
		}
		others = append(others, e.Reason+": "+e.Message)
	}
	return fmt.Errorf("got other Events %q", others)
}

func (m *faultMatrix) nodeCondition(ctx context.Context, r report) error {
	n, err := m.Kube.CoreV1().Nodes().Get(ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if c := config.NetworkUnavailable(n); c == nil || c.Reason != r.reason || !fixture.ContainsAll(c.Message, r.words) {
		return fmt.Errorf("got condition %v", c)
	}
	return nil
}

func (m *faultMatrix) acceptedCondition(ctx context.Context, r report) error {
	o, err := m.Network.NetworkV1().ClusterNetworks().Get(ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var conditions []metav1.Condition
	if err := json.Unmarshal([]byte(o.Annotations[config.ConditionsAnnotation]), &conditions); err != nil {
		return err
	}
	for _, c := range conditions {
		if c.Type == config.ConditionAccepted && c.Reason == r.reason && c.ObservedGeneration == o.Generation && fixture.ContainsAll(c.Message, r.words) {
			return nil
		}
	}
	return fmt.Errorf("got conditions %v", conditions)
}
