package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// hostile is a name that would run a script if the page took it for HTML. The API server accepts no such names; what agents report is not validated.
const hostile = `<img src=x onerror=alert(1)><script>alert(2)</script>`

const diagnosticsPath = "/apis/diagnostics.ovsdn.io/v1alpha1"

type object = map[string]any

// fakeAPI is an API server with a number of objects.
type fakeAPI struct {
	url               string
	nodes, namespaces int
	pods              int    // of each namespace
	text              string // in names and messages

	state atomic.Int32
}

// States of the API server.
const (
	running      = iota
	noController // as while controllers restart
	down         // it accepts no request
	noRights     // the user may read one namespace, shop
)

func newFakeAPI(t *testing.T, api *fakeAPI) *fakeAPI {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	api.url = server.URL
	return api
}

// ServeHTTP implements http.Handler.
func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isDiagnostics := strings.HasPrefix(r.URL.Path, diagnosticsPath)
	inShop := strings.Contains(r.URL.Path, "/namespaces/shop/")
	switch state := a.state.Load(); {
	case state == down:
		panic(http.ErrAbortHandler)
	case state == noController && isDiagnostics:
		writeStatus(w, http.StatusServiceUnavailable, "error trying to reach service: connection refused")
	case state == noRights && !inShop:
		writeStatus(w, http.StatusForbidden, `User "tenant" cannot read `+r.URL.Path)
	default:
		a.answer(w, r)
	}
}

func (a *fakeAPI) answer(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == diagnosticsPath+"/nodestatuses":
		writePage(w, r, a.nodes, a.node)
	case strings.HasPrefix(path, diagnosticsPath+"/nodeflows/"):
		writeJSON(w, http.StatusOK, object{"flows": a.flows(strings.TrimPrefix(path, diagnosticsPath+"/nodeflows/"))})
	case path == "/api/v1/namespaces":
		writePage(w, r, a.namespaces, func(i int) object { return named(namespaceName(i)) })
	case path == "/apis/network.openshift.io/v1/netnamespaces":
		writePage(w, r, a.namespaces, func(i int) object {
			o := named(namespaceName(i))
			o["netname"], o["netid"] = namespaceName(i), (i+1)/2*7 // two of each tenant are joined
			return o
		})
	case strings.HasSuffix(path, "/pods"):
		writePage(w, r, a.pods, func(i int) object { return named(a.podName(i)) })
	case strings.HasSuffix(path, "/traces") && r.Method == http.MethodPost:
		a.trace(w, r)
	default:
		writeStatus(w, http.StatusNotFound, "the server could not find the requested resource")
	}
}

func named(name string) object { return object{"metadata": object{"name": name}} }

func namespaceName(i int) string {
	if names := []string{"default", "shop", "shop-db", "billing", "billing-db"}; i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("tenant%d", i)
}

func (a *fakeAPI) podName(i int) string {
	if i == 1 && a.text != "" {
		return a.text
	}
	names := []string{"web", "db", "cache", "queue", "worker"}
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("worker-%d", i)
}

func (a *fakeAPI) node(i int) object {
	status := object{
		"hostIP": fmt.Sprintf("192.0.2.%d", i%250+1), "subnet": fmt.Sprintf("10.128.%d.0/23", i%128*2), "ready": true, "agentVersion": "v1.2.0", "mode": "multitenant",
		"pods": 12, "addresses": 509, "freeAddresses": 497, "flows": 840,
	}
	switch i {
	case 1:
		status["ready"], status["notReady"] = false, "tun0 has no address"+a.text
	case 2:
		status["error"] = "the agent does not answer: connection refused" + a.text
	case 3:
		status["drift"] = 3
	case 4, 5:
		status["peerProblems"] = []object{{"node": "node3", "problem": "the overlay does not answer, the underlay does" + a.text}}
	}
	return object{"metadata": object{"name": fmt.Sprintf("node%d", i+1)}, "status": status}
}

func (a *fakeAPI) flows(node string) (flows []object) {
	for i, t := range []struct {
		number int
		name   string
	}{{0, "classify"}, {20, "pod-ingress"}, {80, "isolation"}, {83, "ingress-denied"}} {
		for n := range max(8, a.pods/4) {
			flows = append(flows, object{
				"table": t.number, "tableName": t.name, "priority": 100, "match": fmt.Sprintf("ip,in_port=%d,nw_src=10.128.%d.%d", n+3, n/250, n%250), "cookie": "0x4aa",
				"actions": "goto_table:30" + a.text, "owners": []string{"pod shop/web" + a.text, "node " + node}, "state": "Installed", "packets": 7 * n * (i + 1), "bytes": 700 * n,
			})
		}
	}
	flows[3]["state"], flows[3]["desired"] = "Different", "cookie=0x4aa,actions=drop"
	return flows
}

// trace answers that pods other than web do not reach db.
func (a *fakeAPI) trace(w http.ResponseWriter, r *http.Request) {
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		writeStatus(w, http.StatusBadRequest, err.Error())
		return
	}
	spec, _ := o["spec"].(object)
	source, destination := fmt.Sprint(spec["source"]), fmt.Sprint(spec["destination"])
	verdict, reason := "Delivered", "delivered to "+destination+a.text
	switch {
	case strings.HasSuffix(destination, "/db") && !strings.HasSuffix(source, "/web"):
		verdict, reason = "Dropped", "on node node2: table ingress-denied (83) dropped it: networkpolicy/shop/db has no rule that allows it"
	case strings.HasSuffix(source, "/queue") && strings.HasSuffix(destination, "/cache"):
		verdict, reason = "Unknown", "the agent of node3 does not answer"
	}
	o["status"] = object{"verdict": verdict, "reason": reason, "paths": []object{{
		"verdict": verdict, "reason": reason, "notEvaluated": []string{"the underlay between nodes node1 and node2" + a.text},
		"hops": []object{{
			"node": "node1", "from": source, "verdict": verdict, "reason": reason,
			"packet": object{"from": source, "protocol": "TCP", "source": "10.128.0.5", "sourcePort": 49152, "destination": "10.129.0.7", "destinationPort": 80},
			"steps": []object{
				{"table": 0, "tableName": "classify", "priority": 100, "match": "in_port=3", "actions": "goto_table:20"},
				{"table": 83, "tableName": "ingress-denied", "priority": 0, "match": "", "actions": "drop", "objects": []object{{"object": "networkpolicy/shop/db" + a.text}}},
			},
		}},
	}}}
	writeJSON(w, http.StatusOK, o)
}

func writePage(w http.ResponseWriter, r *http.Request, total int, item func(int) object) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = total
	}
	start, _ := strconv.Atoi(r.URL.Query().Get("continue")) // "" is 0
	items := []object{}
	for i := start; i < min(total, start+limit); i++ {
		items = append(items, item(i))
	}
	meta := object{}
	if end := start + limit; end < total {
		meta["continue"], meta["remainingItemCount"] = strconv.Itoa(end), total-end
	}
	writeJSON(w, http.StatusOK, object{"metadata": meta, "items": items})
}

func writeStatus(w http.ResponseWriter, code int, message string) {
	writeJSON(w, code, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})
}

func writeJSON(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}
