package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// trafficGroup is what rates are summed by.
type trafficGroup string

// The groups, as users write them.
const (
	byPod       trafficGroup = "pods"
	byNamespace trafficGroup = "namespaces"
	byNode      trafficGroup = "nodes"
)

// sortByBytes is the default order of rates.
const sortByBytes = "bytes"

// trafficOrders returns the values of --sort-by. The rates of bytes and packets are those of both directions, in and out are of bytes.
func trafficOrders() []string { return []string{sortByBytes, "packets", "in", "out"} }

// trafficRate is the rate of the traffic of a pod, or of the pods of a namespace or a node. No API serves it.
type trafficRate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Node  string        `json:"node,omitempty"` // of a pod
	Ports int           `json:"ports"`          // that have a rate; more than one of a pod while a sandbox replaces another
	In    directionRate `json:"in"`
	Out   directionRate `json:"out"`
}

// directionRate is that of one direction.
type directionRate struct {
	BitsPerSecond    float64 `json:"bitsPerSecond"`
	PacketsPerSecond float64 `json:"packetsPerSecond"`
	DroppedPerSecond float64 `json:"droppedPerSecond"`
}

// trafficSums are rates by group.
type trafficSums map[podPort]*trafficRate

// add adds the rate of a port to that of its group. Counters that went backwards have no rate: the port was added again, or its device was reset.
func (t trafficSums) add(by trafficGroup, port podPort, before, now podCounters) {
	elapsed := now.age - before.age
	in, isIn := rateOf(before.in, now.in, elapsed)
	out, isOut := rateOf(before.out, now.out, elapsed)
	if before.age < 0 || elapsed <= 0 || !isIn || !isOut {
		return
	}
	group, kind, name := podPort{node: port.node, namespace: port.namespace, name: port.name}, "PodTrafficRate", port.name
	switch by {
	case byNamespace:
		group, kind, name = podPort{namespace: port.namespace}, "NamespaceTrafficRate", port.namespace
	case byNode:
		group, kind, name = podPort{node: port.node}, "NodeTrafficRate", port.node
	}
	sum := t[group]
	if sum == nil {
		sum = &trafficRate{TypeMeta: metav1.TypeMeta{APIVersion: diagnostics.Group + "/" + diagnostics.Version, Kind: kind}, ObjectMeta: metav1.ObjectMeta{Name: name}}
		if by == byPod {
			sum.Namespace, sum.Node = port.namespace, port.node
		}
		t[group] = sum
	}
	sum.Ports++
	sum.In.add(in)
	sum.Out.add(out)
}

// rateOf returns the rate between two samples; false if a counter decreased.
func rateOf(before, now diagnostics.Traffic, elapsed time.Duration) (directionRate, bool) {
	seconds := elapsed.Seconds()
	return directionRate{
		BitsPerSecond: 8 * float64(now.Bytes-before.Bytes) / seconds, PacketsPerSecond: float64(now.Packets-before.Packets) / seconds,
		DroppedPerSecond: float64(now.Dropped-before.Dropped) / seconds,
	}, now.Bytes >= before.Bytes && now.Packets >= before.Packets && now.Dropped >= before.Dropped
}

func (r *directionRate) add(other directionRate) {
	r.BitsPerSecond += other.BitsPerSecond
	r.PacketsPerSecond += other.PacketsPerSecond
	r.DroppedPerSecond += other.DroppedPerSecond
}

// sorted returns the largest rates first, at most limit unless that is 0.
func (t trafficSums) sorted(order string, limit int) []*trafficRate {
	size := func(r *trafficRate) float64 {
		switch order {
		case "packets":
			return r.In.PacketsPerSecond + r.Out.PacketsPerSecond
		case "in":
			return r.In.BitsPerSecond
		case "out":
			return r.Out.BitsPerSecond
		}
		return r.In.BitsPerSecond + r.Out.BitsPerSecond
	}
	rates := make([]*trafficRate, 0, len(t))
	for _, r := range t {
		rates = append(rates, r)
	}
	slices.SortFunc(rates, func(a, b *trafficRate) int {
		return cmp.Or(cmp.Compare(size(b), size(a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node))
	})
	if limit > 0 && len(rates) > limit {
		rates = rates[:limit]
	}
	return rates
}

func (l *topLister) print(rates []*trafficRate) error {
	if _, isTable := l.printer.(*tablePrinter); isTable {
		if len(rates) == 0 {
			fmt.Fprintln(l.ErrOut, "No resources found")
			return nil
		}
		return l.printer.PrintObj(l.table(rates), l.Out)
	}
	items, err := objectsOf(rates)
	if err != nil {
		return err
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}}, Items: items}
	return l.printer.PrintObj(list, l.Out)
}

func (l *topLister) table(rates []*trafficRate) *metav1.Table {
	names := map[trafficGroup][]string{byPod: {"Namespace", "Pod", "Node"}, byNamespace: {"Namespace", "Ports"}, byNode: {"Node", "Ports"}}[l.by]
	table := &metav1.Table{}
	for _, name := range append(names, "In-Bits/s", "Out-Bits/s", "In-Packets/s", "Out-Packets/s", "Drops/s", "In-Drops/s", "Out-Drops/s") {
		column := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if name == "In-Drops/s" || name == "Out-Drops/s" {
			column.Priority = 1 // only with -o wide
		}
		table.ColumnDefinitions = append(table.ColumnDefinitions, column)
	}
	for _, r := range rates {
		cells := []any{r.Name, r.Ports}
		if l.by == byPod {
			cells = []any{r.Namespace, r.Name, r.Node}
		}
		for _, rate := range []float64{
			r.In.BitsPerSecond, r.Out.BitsPerSecond, r.In.PacketsPerSecond, r.Out.PacketsPerSecond, r.In.DroppedPerSecond + r.Out.DroppedPerSecond,
			r.In.DroppedPerSecond, r.Out.DroppedPerSecond,
		} {
			cells = append(cells, withPrefix(rate))
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells})
	}
	return table
}

// withPrefix returns the number with three digits and a prefix of powers of 1000.
func withPrefix(n float64) string {
	for _, prefix := range []string{"", "k", "M", "G"} {
		if n < 999.5 {
			return fmt.Sprintf("%.3g%s", n, prefix)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3gT", n)
}
