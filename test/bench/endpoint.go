package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// endpointFigure: one endpoint of one of many services, from the API to the switch. The floor is a watch of its object.
func endpointFigure() figure {
	return figure{
		name:  "endpoint",
		about: "one endpoint of one of 10,000 services removed and added, from the write to the API server to the switch; flow-mods and CPU time",
		run:   runEndpoint,
	}
}

const (
	// translateTable has a flow for each endpoint.
	translateTable = 67

	endpointTime = 50 // ms
	endpointCPU  = 5  // ms

	endpointPause = 100 * time.Millisecond // for what the agent does after a change
)

func runEndpoint(b *B) {
	n := b.newStartNode()
	n.fillForServices()
	n.createServices(0, manyServices)
	counter := b.newCounter(n.ovs)
	agent := n.startAgent(counter.dir, balancing)
	_, slice := serviceObjects(manyServices / 2)
	c := n.newEndpointChanges(counter, agent, slice)
	c.change() // the first ones make connections and grow buffers
	c.change()
	c.samples = endpointSamples{}
	start := time.Now()
	for i := range b.samples + b.samples%2 { // an even number, which restores the endpoint
		b.step("change %d of %d", i+1, b.samples)
		c.change()
	}
	took := time.Since(start)
	before := b.processorTimeOf(agent)
	b.pause(took)
	idle := (b.processorTimeOf(agent) - before) / time.Duration(len(c.samples.installed))

	name := fmt.Sprintf("1 endpoint of %d × %d", manyServices, endpointsPerService)
	installed, seen := seriesOf("ours", milliseconds(c.samples.installed)), seriesOf("bare watch", milliseconds(c.samples.seen), within(endpointTime, "ms"))
	b.record(name, "ms", installed, seen)
	b.record(name+", p99", "ms", seriesOf("ours", []float64{installed.P99}), seriesOf("bare watch", []float64{seen.P99}, within(endpointTime, "ms")))
	b.record(name, "ms of CPU", seriesOf("ours", milliseconds(c.samples.cpu)),
		seriesOf("idle agent", milliseconds([]time.Duration{idle}), within(endpointCPU, "ms")))
	needed := seriesOf("needed", []float64{1}, atMost(1))
	b.record(name+", most", "flow-mods", seriesOf("ours", []float64{slices.Max(c.samples.flowMods)}), needed)
	b.record(name+", most", "group-mods", seriesOf("ours", []float64{slices.Max(c.samples.groupMods)}), needed)
}

// endpointChanges removes the last endpoint of a service and adds it again, alternately.
type endpointChanges struct {
	b       *B
	counter *counter
	agent   *process
	client  discoveryclient.EndpointSliceInterface
	all     []discoveryv1.Endpoint
	slice   *discoveryv1.EndpointSlice
	flows   <-chan time.Time // when a flow of an endpoint changed
	events  <-chan time.Time // when the bare watch reported the object

	samples endpointSamples
}

type endpointSamples struct {
	installed, seen, cpu []time.Duration
	flowMods, groupMods  []float64
}

func (n *startNode) newEndpointChanges(counter *counter, agent *process, slice *discoveryv1.EndpointSlice) *endpointChanges {
	b := n.b
	b.Helper()
	c := &endpointChanges{b: b, counter: counter, agent: agent, client: n.kube.DiscoveryV1().EndpointSlices(slice.Namespace), all: slice.Endpoints}
	var err error
	c.slice, err = c.client.Get(b.Context(), slice.Name, metav1.GetOptions{})
	b.must(err)
	c.flows = b.watchFlows(n.ovs, translateTable)
	w, err := c.client.Watch(b.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, slice.Name).String(), ResourceVersion: c.slice.ResourceVersion,
	})
	b.must(err)
	b.Cleanup(w.Stop)
	c.events = timesOf(b.Context(), w)
	return c
}

// timesOf returns when objects changed. It is closed with the watch.
func timesOf(ctx context.Context, w watch.Interface) <-chan time.Time {
	times := make(chan time.Time, 1)
	go func() {
		defer close(times)
		for event := range w.ResultChan() {
			if event.Type == watch.Modified {
				sendTime(ctx, times, time.Now())
			}
		}
	}()
	return times
}

// sendTime sends a time, unless the context ends.
func sendTime(ctx context.Context, times chan<- time.Time, at time.Time) {
	select {
	case times <- at:
	case <-ctx.Done():
	}
}

// change removes the endpoint or adds it, and records what it took. Work after the switch's answer is part of the CPU time.
func (c *endpointChanges) change() {
	b := c.b
	b.Helper()
	if len(c.slice.Endpoints) == len(c.all) {
		c.slice.Endpoints = c.all[:len(c.all)-1]
	} else {
		c.slice.Endpoints = c.all
	}
	c.counter.reset()
	before, start := b.processorTimeOf(c.agent), time.Now()
	var err error
	c.slice, err = c.client.Update(b.Context(), c.slice, metav1.UpdateOptions{})
	b.must(err)
	c.samples.installed = append(c.samples.installed, b.next(c.flows).Sub(start))
	c.samples.seen = append(c.samples.seen, b.next(c.events).Sub(start))
	b.pause(endpointPause)
	c.samples.cpu = append(c.samples.cpu, b.processorTimeOf(c.agent)-before)
	c.samples.flowMods = append(c.samples.flowMods, float64(c.counter.flowMods(b)))
	c.samples.groupMods = append(c.samples.groupMods, float64(c.counter.groups.Load()))
}

// next returns the next time, for which it waits.
func (b *B) next(times <-chan time.Time) time.Time {
	b.Helper()
	select {
	case at, open := <-times:
		if !open {
			b.Fatal("a watch has ended")
		}
		return at
	case <-time.After(patience):
		b.Fatalf("no event within %v", patience)
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
	return time.Time{}
}

// pause lets time pass.
func (b *B) pause(d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}

// processorTimeOf is what a program has used until now, without programs that it has started.
func (b *B) processorTimeOf(p *process) time.Duration {
	b.Helper()
	const scheduler = 2 // CPUCLOCK_SCHED, see clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|scheduler), &t); err != nil { //nolint:gosec // a process ID has 22 bits
		b.Fatalf("read the CPU time: %v\n%s", err, p.lastWords())
	}
	return time.Duration(t.Nano())
}

// watchFlows returns when flows of a table of the bridge are added or deleted, as the switch reports it after a bundle. It is closed with the connection.
func (b *B) watchFlows(s *ovstest.Switch, table uint8) <-chan time.Time {
	b.Helper()
	c, err := dialOpenFlow(filepath.Join(s.RunDir, ovstest.Bridge+".mgmt"))
	b.must(err)
	b.Cleanup(func() { c.conn.Close() })
	b.must(c.put(&openflow.FlowMonitorRequest{ID: 1, Flags: openflow.MonitorAdded | openflow.MonitorRemoved, Table: table}))
	b.must(c.flush())
	_, err = c.changedFlows() // the reply to the request
	b.must(err)
	times := make(chan time.Time, 1)
	go func() {
		defer close(times)
		for {
			changed, err := c.changedFlows()
			if err != nil {
				return // closed
			}
			at := time.Now()
			for range changed {
				sendTime(b.Context(), times, at)
			}
		}
	}()
	return times
}

// changedFlows waits for the next message of a flow monitor, and returns how many changes it reports.
func (c *ofconn) changedFlows() (changed int, err error) {
	for {
		m, err := c.receive()
		if err != nil {
			return 0, err
		}
		switch m := m.(type) {
		case *openflow.Error:
			return 0, fmt.Errorf("the switch refuses a flow monitor: %w", m)
		case *openflow.EchoRequest:
			if err := errors.Join(c.put(&openflow.EchoReply{Data: m.Data}), c.flush()); err != nil {
				return 0, err
			}
		case *openflow.FlowMonitorReply:
			for _, u := range m.Updates {
				if u.Event == openflow.FlowAdded || u.Event == openflow.FlowRemoved {
					changed++
				}
			}
			return changed, nil
		}
	}
}
