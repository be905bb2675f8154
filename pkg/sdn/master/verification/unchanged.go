package verification

import (
	"fmt"
	"strings"
)

// unchanged returns the question of a previous run in this one, if all objects that decide it are the same, and so is what they allow.
func (r *run) unchanged(previous *run, q question) (question, bool) {
	found := question{port: q.port}
	for _, end := range []struct {
		old int
		to  *int
	}{{q.from, &found.from}, {q.to, &found.to}} {
		old := previous.snapshot.Pods[end.old]
		*end.to = r.indexOf(keyOf(old))
		if *end.to == len(r.snapshot.Pods) || r.printOf(*end.to) != previous.printOf(end.old) {
			return question{}, false
		}
	}
	return found, r.expected(found).Allowed == previous.expected(q).Allowed
}

// printOf returns a text of all that decides about a pod's connections: what it has itself, and the policies of its namespace and of the cluster.
func (r *run) printOf(i int) string {
	p := r.snapshot.Pods[i]
	return fmt.Sprintln(keyOf(p), p.UID, p.Status.PodIP, p.Spec.NodeName, p.Labels, r.ofNamespace(p.Namespace))
}

// ofNamespace returns a text of the namespace and of the policies. A change of a policy's specification increments its generation.
func (r *run) ofNamespace(name string) string {
	text, ok := r.prints[name]
	if ok {
		return text
	}
	var b strings.Builder
	for _, ns := range r.snapshot.Namespaces {
		if ns.Name == name {
			fmt.Fprintln(&b, ns.UID, ns.Labels)
		}
	}
	vnid, hasVNID := r.snapshot.VNIDs[name]
	fmt.Fprintln(&b, vnid, hasVNID)
	for _, p := range r.snapshot.Policies {
		if p.Namespace == name {
			fmt.Fprintln(&b, p.Name, p.UID, p.Generation)
		}
	}
	for _, p := range r.snapshot.ClusterPolicies {
		fmt.Fprintln(&b, p.Name, p.UID, p.Generation)
	}
	r.prints[name] = b.String()
	return b.String()
}
