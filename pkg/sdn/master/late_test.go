package master_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// slowRoad leads to the API server. What a master sends on it can be held back, as if the master had been stopped between its
// decision and the write, or the network had kept the packet.
type slowRoad struct {
	config *rest.Config // of a client that takes it
	server *httptest.Server

	mu       sync.Mutex
	hold     func(*http.Request) bool // whether to hold a request back
	waiting  int
	opened   chan struct{}    // closed when all may pass
	statuses map[string][]int // of what was held back, "METHOD path": the API server's answers, more than one if it was sent again
}

func newSlowRoad(t *testing.T, to *rest.Config, hold func(*http.Request) bool) *slowRoad {
	t.Helper()
	r := &slowRoad{hold: hold, opened: make(chan struct{}), statuses: map[string][]int{}}
	transport := must(rest.TransportFor(to))(t)
	target := must(url.Parse(to.Host))(t)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ModifyResponse: func(response *http.Response) error {
			response.Body = &slowBody{response.Body, r}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		if !r.wait(request) || request.Method == http.MethodGet { // a watch without its reader would never end
			proxy.ServeHTTP(w, request)
			return
		}
		// The sender of a write may have given up. It arrives all the same.
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, request.WithContext(context.WithoutCancel(request.Context())))
		r.mu.Lock()
		what := request.Method + " " + request.URL.Path + " " + nameIn(body)
		r.statuses[what] = append(r.statuses[what], answer.Code)
		r.mu.Unlock()
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	r.config = &rest.Config{Host: r.server.URL}
	return r
}

// nameIn returns the name of the HostSubnet in a request.
func nameIn(body []byte) string {
	_, rest, _ := strings.Cut(string(body), `"host":"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// close ends all that runs on the road.
func (r *slowRoad) close() {
	r.open()
	r.server.CloseClientConnections()
	r.server.Close()
}

// wait returns whether it held the request back.
func (r *slowRoad) wait(request *http.Request) bool {
	r.mu.Lock()
	held := r.hold != nil && r.hold(request)
	if held {
		r.waiting++
	}
	r.mu.Unlock()
	if held {
		<-r.opened
	}
	return held
}

// freeze holds back all from now on, also what the API server sends.
func (r *slowRoad) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = func(*http.Request) bool { return true }
}

func (r *slowRoad) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold != nil {
		r.hold = nil
		close(r.opened)
	}
}

// held waits until so many requests wait.
func (r *slowRoad) held(t *testing.T, n int) {
	t.Helper()
	eventually(t, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waiting < n {
			return fmt.Errorf("%d requests are held back, want %d", r.waiting, n)
		}
		return nil
	})
}

// arrived waits for the API server's answer to a request that was held back.
func (r *slowRoad) arrived(t *testing.T, request string, status int) {
	t.Helper()
	eventually(t, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.Contains(r.statuses[request], status) {
			return fmt.Errorf("want %s: %d; there are %v", request, status, r.statuses)
		}
		return nil
	})
}

// slowBody is an answer that stops while the road is frozen.
type slowBody struct {
	io.ReadCloser
	road *slowRoad
}

func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.road.mu.Lock()
	frozen := b.road.hold != nil && b.road.hold(&http.Request{Method: http.MethodGet, URL: &url.URL{}})
	b.road.mu.Unlock()
	if frozen {
		<-b.road.opened
	}
	return n, err
}

// noDuplicates fails the test when two given subnets overlap at any time until its end.
func (c *cluster) noDuplicates(t *testing.T) {
	t.Helper()
	// A client of its own, whose watch is not among the administrator's connections.
	client := must(networkclient.NewForConfig(c.admin))(t)
	ctx, cancel := context.WithCancel(context.Background())
	list := must(client.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{}))(t)
	w := must(client.NetworkV1().HostSubnets().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	given := map[string]netip.Prefix{}
	var running sync.WaitGroup
	running.Go(func() {
		for e := range w.ResultChan() {
			hs, ok := e.Object.(*networkv1.HostSubnet)
			if !ok {
				if ctx.Err() == nil {
					t.Errorf("watch: %v", e)
				}
				return
			}
			delete(given, hs.Name)
			if e.Type == watch.Deleted || config.IsProposed(hs) {
				continue
			}
			p, err := netip.ParsePrefix(hs.Subnet)
			if err != nil {
				t.Error(err)
			}
			for name, other := range given {
				if other.Overlaps(p) {
					t.Errorf("%s has %s while %s has %s", hs.Name, p, name, other)
				}
			}
			given[hs.Name] = p
		}
	})
	t.Cleanup(func() {
		cancel()
		w.Stop()
		running.Wait()
	})
}

// ruleAlone makes a master work without a lease: what is shown must not depend on it.
func ruleAlone(cfg *master.Config) { cfg.LeaderElect = false }

// A leader decides on subnets for two nodes and is stopped before it writes. Another gives these subnets to others. Then the
// writes arrive.
func testLateWrites(t *testing.T, c *cluster) {
	c.noLeaks(t)
	c.noDuplicates(t)
	road := newSlowRoad(t, c.master, func(r *http.Request) bool {
		return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/hostsubnets")
	})
	t.Cleanup(road.close)
	_, stopLate := c.start(t, func(cfg *master.Config) {
		ruleAlone(cfg)
		cfg.REST = road.config
	})
	c.addNode(t, "gone", "192.0.2.1")
	road.held(t, 1)
	c.addNode(t, "mute", "192.0.2.2")
	road.held(t, 2)
	road.freeze()

	c.deleteNode(t, "gone")
	c.setAddress(t, "mute", "") // so that the next leader has nothing to write for it
	c.start(t, ruleAlone)
	c.addNode(t, "node3", "192.0.2.3")
	c.hostSubnet(t, "node3", has("10.128.0.0/23"))
	c.addNode(t, "node4", "192.0.2.4")
	c.hostSubnet(t, "node4", has("10.129.0.0/23"))

	road.open()
	for _, name := range []string{"gone", "mute"} { // the API server can't tell that they are late
		road.arrived(t, "POST /apis/network.openshift.io/v1/hostsubnets "+name, http.StatusCreated)
	}
	eventually(t, func(ctx context.Context) error {
		list, err := c.network.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != 2 {
			err = fmt.Errorf("there are %v", list.Items)
		}
		return err
	})
	c.setAddress(t, "mute", "192.0.2.2")
	c.hostSubnet(t, "mute", nil)
	c.hostSubnet(t, "node3", has("10.128.0.0/23"))
	c.hostSubnet(t, "node4", has("10.129.0.0/23"))
	stopLate()
	road.close()
}

// A leader accepts that a range goes of which nothing is used, and is stopped before it says so. Under the next the
// range is used. Then the word arrives.
func testDeposed(t *testing.T, c *cluster) {
	c.noLeaks(t)
	patches := 0
	road := newSlowRoad(t, c.master, func(r *http.Request) bool {
		if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/clusternetworks/default") {
			patches++
		}
		return patches > 1 // the first writes the name
	})
	t.Cleanup(road.close)
	ranges := []string{"10.128.0.0/23", "10.9.0.0/23"}
	late, stopLate := c.start(t, func(cfg *master.Config) {
		ruleAlone(cfg)
		cfg.REST = road.config
		cfg.ClusterNetworks = ranges
	})
	c.accepted(t, "True", "Accepted", "", "10.128.0.0/23 with 9 host bits", "10.9.0.0/23 with 9 host bits")
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
	c.edit(t, setRanges("10.128.0.0/23"))
	road.held(t, 1)

	// The next leader is told otherwise before it gives the second range out.
	c.edit(t, setRanges(ranges...))
	c.start(t, ruleAlone)
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node2", has("10.9.0.0/23"))
	before := c.clusterNetwork(t)

	road.open()
	road.arrived(t, "PATCH /apis/network.openshift.io/v1/clusternetworks/default ", http.StatusConflict)
	var now *networkv1.ClusterNetwork
	eventually(t, func(context.Context) error {
		resigned := late.contains("has written itself into ClusterNetwork default")
		now = c.clusterNetwork(t) // before it may begin anew
		if !resigned {
			return errors.New("the former leader goes on")
		}
		return nil
	})
	stopLate()
	if now.ResourceVersion != before.ResourceVersion {
		t.Errorf("the former leader wrote: %v", now.Annotations)
	}
	road.close()
}
