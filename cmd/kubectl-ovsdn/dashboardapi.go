package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	maxAnswer    = 128 << 20 // bytes of an answer of the API server: MaxFlows flows
	maxPage      = 32 << 20  // bytes of one that is decoded
	maxTraceSpec = 4 << 10   // bytes
	maxContinue  = 4 << 10   // bytes of a list's token
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

// names are the objects of a list: all that the page needs of them. The objects themselves may have secrets, in annotations.
type names struct {
	Items     []name `json:"items"`
	Continue  string `json:"continue,omitempty"`
	Remaining int64  `json:"remaining"` // number of those behind this page, if the API server reports it
}

type name struct {
	Name string  `json:"name"`
	VNID *uint32 `json:"vnid,omitempty"` // of a NetNamespace
}

func namesOf(list metav1.ListMeta) names {
	n := names{Items: []name{}, Continue: list.Continue}
	if list.RemainingItemCount != nil {
		n.Remaining = *list.RemainingItemCount
	}
	return n
}

func (d *dashboard) namespaces(w http.ResponseWriter, r *http.Request) error {
	return d.metadata(w, r, "/api/v1/namespaces")
}

func (d *dashboard) pods(w http.ResponseWriter, r *http.Request) error {
	namespace, err := namespaceOf(r)
	if err != nil {
		return err
	}
	return d.metadata(w, r, "/api/v1/namespaces/"+namespace+"/pods")
}

// metadata answers with the names of a list, of which it reads only the metadata.
func (d *dashboard) metadata(w http.ResponseWriter, r *http.Request, path string) error {
	var list metav1.PartialObjectMetadataList
	request := d.api.Get().AbsPath(path).SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	if err := readPage(r, request, &list); err != nil {
		return err
	}
	answer := namesOf(list.ListMeta)
	for _, o := range list.Items {
		answer.Items = append(answer.Items, name{Name: o.Name})
	}
	writeAnswer(w, http.StatusOK, answer)
	return nil
}

func (d *dashboard) netNamespaces(w http.ResponseWriter, r *http.Request) error {
	var list networkv1.NetNamespaceList
	if err := readPage(r, d.api.Get().AbsPath("/apis/network.openshift.io/v1/netnamespaces").SetHeader("Accept", "application/json"), &list); err != nil {
		return err
	}
	answer := namesOf(list.ListMeta)
	for _, o := range list.Items {
		vnid := uint32(vnidOf(o))
		answer.Items = append(answer.Items, name{Name: o.Name, VNID: &vnid})
	}
	writeAnswer(w, http.StatusOK, answer)
	return nil
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

// readPage decodes a page of a list.
func readPage(r *http.Request, request *rest.Request, into any) error {
	if err := addPage(request, r); err != nil {
		return err
	}
	body, err := request.Stream(r.Context())
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(io.LimitReader(body, maxPage)).Decode(into)
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
