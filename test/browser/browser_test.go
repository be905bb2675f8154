package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

const (
	allNodesShown = `document.querySelectorAll("#nodes-map .tile").length > 0`
	noBanner      = `document.getElementById("banner").hidden`
)

func TestBrowser_oneClick(t *testing.T) {
	b := open(t, newFakeAPI(t, &fakeAPI{nodes: 6, namespaces: 6, pods: 5}).url)
	b.eventually(`document.querySelectorAll("#nodes-map .tile").length === 6`)
	for _, want := range []string{"node2: not ready: tun0 has no address", "node3: from node5, node6: the overlay does not answer, the underlay does"} {
		b.eventually(fmt.Sprintf(`document.getElementById("nodes-problems").innerText.includes(%q)`, want))
	}
	if b.is(`location.href.includes("token")`) {
		t.Error("the URL still has the token")
	}
	b.click(`#nodes-map .tile[href="#flows/node1"]`)
	b.eventually(flowsOf("node1"))
	b.chooseNode("node2")
	b.eventually(flowsOf("node2") + ` && location.hash === "#flows/node2"`)
	b.visit("flows") // without a node
	b.eventually(`location.hash === "#flows"`)
	b.chooseNode("node1")
	b.eventually(flowsOf("node1") + ` && location.hash === "#flows/node1"`)
	b.is(`history.go(-2); true`)
	b.eventually(flowsOf("node2") + ` && document.querySelector("#flows-form [name=node]").value === "node2"`)
	b.visit("tenants")
	b.eventually(`["shop-db", "5 pods"].every((text) => document.getElementById("tenants-map").innerText.includes(text))`)
	b.click(`#tenants-map a[href="#matrix/shop"]`)
	b.eventually(`!document.getElementById("view-matrix").hidden`)
	b.click(`#matrix-form button[type=submit]`)
	b.eventually(`document.getElementById("matrix-progress").innerText.startsWith("20 of 20 traced: 16 delivered, 3 dropped, 1 unknown, 0 failed")`)
	b.click(`#matrix-table td.Dropped button`)
	b.eventually(`document.getElementById("matrix-trace").innerText.includes("networkpolicy/shop/db has no rule that allows it")`)
}

// flowsOf is true when the page shows the flows of the node, and of no other.
func flowsOf(node string) string {
	return fmt.Sprintf(`document.getElementById("flows-count").innerText.startsWith("%[1]s: 32 flows") && document.querySelectorAll("#flows-rows tr").length === 32 &&
		Array.from(document.querySelectorAll("#flows-rows tr")).every((row) => row.innerText.includes("node %[1]s"))`, node)
}

// The tests of what the page must not do are in open.
func TestBrowser_hostileNames(t *testing.T) {
	b := open(t, newFakeAPI(t, &fakeAPI{nodes: 6, namespaces: 6, pods: 4, text: hostile}).url)
	b.eventually(fmt.Sprintf(`document.getElementById("nodes-problems").innerText.includes(%q)`, hostile))
	b.click(`#nodes-map .tile[href="#flows/node1"]`)
	b.eventually(fmt.Sprintf(`document.getElementById("flows-rows").innerText.includes(%q)`, hostile))
	b.visit("matrix")
	b.fill(`#matrix-form [name=from]`, "shop")
	b.click(`#matrix-form button[type=submit]`)
	b.eventually(`document.getElementById("matrix-progress").innerText.startsWith("12 of 12 traced")`)
	b.click(`#matrix-table td.Delivered button`)
	b.eventually(fmt.Sprintf(`document.getElementById("matrix-trace").innerText.includes(%q)`, hostile))
	if !b.is(`document.querySelectorAll("body img, body script").length === 0`) {
		t.Error("a name became an element")
	}
}

func TestBrowser_manyObjects(t *testing.T) {
	b := open(t, newFakeAPI(t, &fakeAPI{nodes: 5000, namespaces: 10000, pods: 10000}).url)
	// The longest task of the page, in which it does not react, in milliseconds.
	b.is(`window.longest = 0;
		new PerformanceObserver((l) => { for (const e of l.getEntries()) window.longest = Math.max(window.longest, e.duration); }).observe({ type: "longtask", buffered: true }); true`)
	b.eventually(`document.getElementById("nodes-count").innerText.startsWith("5,000 nodes")`)
	b.fill("#nodes-filter", "node4999")
	b.eventually(`document.querySelectorAll("#nodes-map .tile").length === 1`)
	b.visit("tenants")
	b.eventually(`document.getElementById("tenants-count").innerText.includes("the first 100 are shown")`)
	b.eventually(`document.getElementById("tenants-map").innerText.includes("10,000 pods")`)
	b.visit("matrix")
	b.fill(`#matrix-form [name=from]`, "shop")
	b.fill(`#matrix-form [name=fromFilter]`, "worker-999")
	b.click(`#matrix-form button[type=submit]`)
	b.eventually(`document.getElementById("matrix-count").innerText.includes("11 of 10,000 pods of shop")`)
	b.eventually(`document.getElementById("matrix-progress").innerText.startsWith("220 of 220 traced")`)
	b.visit("flows")
	b.chooseNode("node1")
	b.eventually(`document.getElementById("flows-count").innerText.startsWith("node1: 10,000 flows, the first 300 are shown")`)
	b.fill("#flows-filter", "in_port=77,")
	b.eventually(`document.querySelectorAll("#flows-rows tr").length === 4`)
	longest, err := chromedp.Run(b.ctx, chromedp.Evaluate[float64](`window.longest`))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the page did not react for up to %.0f ms", longest)
	if longest >= 5000 {
		t.Errorf("the page did not react for %.0f ms, want less than 5000", longest)
	}
	if !b.is(`document.querySelectorAll("*").length < 10000`) {
		t.Error("the page has more than 10,000 elements")
	}
}

func TestBrowser_outage(t *testing.T) {
	api := newFakeAPI(t, &fakeAPI{nodes: 3, namespaces: 3, pods: 2})
	b := open(t, api.url)
	b.eventually(allNodesShown)
	b.is(`window.isSamePage = true`)
	for state, want := range map[int32]string{noController: "no controller answers", down: "the API server does not answer"} {
		api.state.Store(state)
		b.eventually(fmt.Sprintf(`!(%s) && document.getElementById("banner-text").innerText.includes(%q)`, noBanner, want))
		if !b.is(allNodesShown) {
			t.Errorf("state %d: the nodes are not shown any longer", state)
		}
		api.state.Store(running)
		b.eventually(noBanner)
	}
	if !b.is(`window.isSamePage === true`) {
		t.Error("the page was loaded again")
	}
}

func TestBrowser_noRights(t *testing.T) {
	api := newFakeAPI(t, &fakeAPI{nodes: 3, namespaces: 3, pods: 2})
	api.state.Store(noRights)
	b := open(t, api.url)
	b.eventually(`document.getElementById("nodes-notice").innerText.includes('You have no right to list NodeStatuses: User "tenant" cannot read')`)
	b.visit("tenants")
	b.eventually(`document.getElementById("tenants-notice").innerText.includes('You have no right to list Namespaces or NetNamespaces: User "tenant" cannot read')`)
	if !b.is(noBanner) {
		t.Error("a missing right is shown as an outage")
	}
	b.visit("matrix")
	run := func(namespace string) {
		b.fill(`#matrix-form [name=from]`, namespace)
		b.click(`#matrix-form button[type=submit]`)
	}
	run("shop")
	b.eventually(`document.getElementById("matrix-progress").innerText.startsWith("2 of 2 traced")`)
	run("billing")
	b.eventually(`document.getElementById("matrix-notice").innerText.includes("cannot read")`)
	if !b.is(`document.querySelectorAll("#matrix-table td").length === 0`) {
		t.Error("the matrix shows pods of another tenant")
	}
}

// TestScreenshots writes those of the documentation (scripts/screenshots.sh).
func TestScreenshots(t *testing.T) {
	dir := os.Getenv(screenshotsVariable)
	if dir == "" {
		t.Skip("writes files; scripts/screenshots.sh runs it")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := open(t, newFakeAPI(t, &fakeAPI{nodes: 24, namespaces: 12, pods: 5}).url)
	write := func(name string) {
		t.Helper()
		picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.eventually(allNodesShown)
	write("nodes")
	b.visit("tenants")
	b.eventually(`document.getElementById("tenants-map").innerText.includes("5 pods")`)
	write("tenants")
	b.visit("matrix")
	b.fill(`#matrix-form [name=from]`, "shop")
	b.click(`#matrix-form button[type=submit]`)
	b.eventually(`document.getElementById("matrix-progress").innerText.startsWith("20 of 20 traced")`)
	b.click(`#matrix-table td.Dropped button`)
	b.eventually(`document.querySelectorAll("#matrix-trace details").length > 0`)
	write("matrix")
	b.visit("nodes")
	b.click(`#nodes-map .tile[href="#flows/node1"]`)
	b.eventually(`document.querySelectorAll("#flows-rows tr").length > 0`)
	write("flows")
}
