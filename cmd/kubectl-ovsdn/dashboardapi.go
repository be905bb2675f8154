package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	maxAnswer    = 128 << 20 // maximum bytes passed from the API server, enough for MaxFlows flows
	maxTraceSpec = 4 << 10   // maximum bytes of a trace
	maxContinue  = 4 << 10   // maximum bytes of a list's token
)

// routes returns the requests of the page. Each reads: a trace sends no packet, and is not stored.
func (d *dashboard) routes() map[string]func(http.ResponseWriter, *http.Request) error {
	return map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /api/tables":                         d.tables,
		"GET /api/nodestatuses":                   d.nodeStatuses,
		"GET /api/nodeflows/{node}":               d.nodeFlows,
		"GET /api/namespaces":                     d.namespaces,
		"GET /api/netnamespaces":                  d.netNamespaces,
		"GET /api/namespaces/{namespace}/pods":    d.pods,
		"POST /api/namespaces/{namespace}/traces": d.trace,
	}
}

// tables answers with the purposes of the tables.
func (d *dashboard) tables(w http.ResponseWriter, _ *http.Request) error {
	type table struct {
		Number  int    `json:"number"`
		Purpose string `json:"purpose"`
	}
	var all []table
	for _, t := range pipeline.Tables() {
		all = append(all, table{t.Number, t.Purpose})
	}
	writeAnswer(w, http.StatusOK, all)
	return nil
}

func (d *dashboard) nodeStatuses(w http.ResponseWriter, r *http.Request) error {
	request := d.api.Get().AbsPath(diagnosticsPath, "nodestatuses")
	if err := addPage(request, r); err != nil {
		return err
	}
	return pass(w, r, request)
}

func (d *dashboard) nodeFlows(w http.ResponseWriter, r *http.Request) error {
	node := r.PathValue("node")
	if len(validation.IsDNS1123Subdomain(node)) > 0 {
		return &requestError{http.StatusNotFound, fmt.Sprintf("%.*q is not the name of a Node", diagnostics.MaxQuoted, node)}
	}
	return pass(w, r, d.api.Get().AbsPath(diagnosticsPath, "nodeflows", node))
}

func (d *dashboard) trace(w http.ResponseWriter, r *http.Request) error {
	namespace, err := namespaceOf(r)
	if err != nil {
		return err
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &requestError{http.StatusUnsupportedMediaType, "a trace is application/json"}
	}
	var spec diagnostics.TraceSpec
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTraceSpec))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&spec); err == nil {
		if _, end := decoder.Token(); end != io.EOF {
			err = errors.New("more than one object")
		}
	}
	if err != nil {
		code := http.StatusBadRequest
		if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
			code = http.StatusRequestEntityTooLarge
		}
		return &requestError{code, "invalid trace: " + err.Error()}
	}
	body, err := json.Marshal(&diagnostics.Trace{TypeMeta: diagnosticsType("Trace"), Spec: spec})
	if err != nil {
		return err
	}
	path := []string{diagnosticsPath, "namespaces", namespace, "traces"}
	return pass(w, r, d.api.Post().AbsPath(path...).SetHeader("Content-Type", "application/json").Body(body))
}

// namespaceOf returns the namespace in the path of a request.
func namespaceOf(r *http.Request) (string, error) {
	namespace := r.PathValue("namespace")
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return "", &requestError{http.StatusNotFound, fmt.Sprintf("%.*q is not the name of a namespace", diagnostics.MaxQuoted, namespace)}
	}
	return namespace, nil
}

// addPage adds the page of a list that the browser asks for: the token of the previous one, and a limit.
func addPage(request *rest.Request, r *http.Request) error {
	query, limit := r.URL.Query(), pageSize
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > pageSize {
			return &requestError{http.StatusBadRequest, fmt.Sprintf("limit: want a number from 1 to %d", pageSize)}
		}
		limit = n
	}
	request.Param("limit", strconv.Itoa(limit))
	if token := query.Get("continue"); len(token) > maxContinue {
		return &requestError{http.StatusBadRequest, "continue: the token is too long"}
	} else if token != "" {
		request.Param("continue", token)
	}
	return nil
}

// pass passes the answer of the aggregated API to the browser.
func pass(w http.ResponseWriter, r *http.Request, request *rest.Request) error {
	body, err := request.Stream(r.Context())
	if err != nil {
		return explainAPIError(err)
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/json")
	if n, err := io.Copy(w, io.LimitReader(body, maxAnswer+1)); err != nil || n > maxAnswer {
		panic(http.ErrAbortHandler) // the browser must not take a part for all
	}
	return nil
}
