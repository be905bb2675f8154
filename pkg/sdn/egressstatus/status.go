// Package egressstatus reads and writes the status of EgressNetworkPolicies, which their Go type does not have.
package egressstatus

import (
	"context"
	"encoding/json"
	"fmt"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Status is the status of an EgressNetworkPolicy.
type Status struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"` // by the controller
	Nodes      map[string]*Node   `json:"nodes,omitempty"`      // by the agent of each node; at most MaxNodes
	DNSErrors  *string            `json:"dnsErrors,omitempty"`  // by the controller: how many of Nodes have an error, and one of these; nil or empty: none

	ResourceVersion string `json:"-"` // of the policy that was read
}

// MaxNodes is the number of nodes that report the DNS names of a policy. Names answer differently on each node, so that a few are a sample, and all would exceed
// the size of an object.
const MaxNodes = 8

// Node is what a node knows of the DNS names of a policy.
type Node struct {
	Names []Name `json:"names,omitempty"`
	Error string `json:"error,omitempty"` // the first of those of names
}

// MaxAddresses is the number of addresses that are listed for a name.
const MaxAddresses = 8

// Name is a DNS name on a node.
type Name struct {
	Name      string       `json:"name"`
	Addresses []string     `json:"addresses,omitempty"` // the first MaxAddresses
	Count     int          `json:"count"`               // of all addresses
	Error     string       `json:"error,omitempty"`     // of the last query
	Since     *metav1.Time `json:"since,omitempty"`     // time of the first failure after the last answer
}

// Client reads and writes the status by the API server.
type Client struct {
	Network networkclient.Interface
}

// Get returns the status.
func (c Client) Get(ctx context.Context, namespace, name string) (*Status, error) {
	content, err := c.Network.NetworkV1().RESTClient().Get().Namespace(namespace).Resource("egressnetworkpolicies").Name(name).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	return parse(content)
}

func parse(content []byte) (*Status, error) {
	var o struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Status Status `json:"status"`
	}
	if err := json.Unmarshal(content, &o); err != nil {
		return nil, fmt.Errorf("parse EgressNetworkPolicy: %w", err)
	}
	o.Status.ResourceVersion = o.Metadata.ResourceVersion
	return &o.Status, nil
}

// Patch changes the fields of the status that the argument has: conditions and DNSErrors as a whole, nodes one by one. A node that is nil is removed.
// It returns the resulting status, with what other clients have written.
func (c Client) Patch(ctx context.Context, namespace, name string, status Status) (*Status, error) {
	content, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return nil, fmt.Errorf("encode the status of an EgressNetworkPolicy: %w", err)
	}
	content, err = c.Network.NetworkV1().RESTClient().Patch(types.MergePatchType).Namespace(namespace).Resource("egressnetworkpolicies").Name(name).
		SubResource("status").Body(content).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	return parse(content)
}

// The condition types, in conditions of an EgressNetworkPolicy.
const (
	// ConditionAccepted is True if the rules are active on the nodes of the namespace's pods.
	ConditionAccepted = "Accepted"

	// ConditionMerged is True if the namespace has several policies: their rules are evaluated as one list.
	ConditionMerged = "Merged"
)

// Reasons of ConditionAccepted.
const (
	// True, by ovsdn-controller: the rules are active.
	ReasonAccepted = "Accepted"

	// True, by ovsdn-controller: the rules are active, and one has cidrSelector 0.0.0.0/32, which is read as 0.0.0.0/0, as OpenShift SDN did.
	ReasonAcceptedAsEverywhere = "AcceptedAsEverywhere"

	// False, by ovsdn-controller: a rule of this policy, or of another of the namespace, is invalid, or they exceed a budget; the last valid rules of the
	// namespace stay active, at first all packets to outside are denied.
	ReasonInvalid = "Invalid"

	// False, by ovsdn-controller: the namespace has VNID 0, in which no egress firewall is active.
	ReasonGlobalNamespace = "GlobalNamespace"
)

// Reasons of ConditionMerged.
const (
	// True, by ovsdn-controller: the message has the order.
	ReasonSeveralPolicies = "SeveralPolicies"

	// False, by ovsdn-controller: it is the only one.
	ReasonOnlyPolicy = "OnlyPolicy"
)
