package diagnosticsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	maxDumps     = 2 // that are answered at the same time
	flowsTimeout = 40 * time.Second

	maxFlowsAnswer = 24 << 20 // bytes of an agent's answer, which takes up to four times as much: control characters are quoted
	maxFlow        = 64 << 10 // bytes of a flow in it
	maxOwners      = 32       // of a flow
	maxObject      = 600      // bytes of ObjectParameter: a kind, a namespace and a name
)

// getFlows answers with the flows of one node.
func (s *Server) getFlows(w http.ResponseWriter, r *http.Request, q request, form representation) error {
	object, err := parseObject(q.query)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	node, err := s.nodeNamed(flows, q.name)
	if err != nil {
		return err
	}
	if node.NoAgent != "" {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s %q: %s", flows, node.Name, node.NoAgent))
	}
	release, err := acquire(s.dumps, "requests for flows")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), flowsTimeout)
	defer cancel()
	var forwarded url.Values
	if object != "" {
		forwarded = url.Values{diagnostics.ObjectParameter: {object}}
	}
	answer := &flowsAnswer{}
	if err := s.Agents.Get(ctx, node.Name, node.HostIP, diagnostics.FlowsPath, forwarded, answer); err != nil {
		return statusOf(flows, node.Name, err)
	}
	meta := metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}
	if form == table() {
		writeFlowTable(w, meta, answer, includeObject(q.query))
		return nil
	}
	writeArray(w, form, struct {
		metav1.TypeMeta
		Metadata  metav1.ObjectMeta `json:"metadata"`
		Object    string            `json:"object,omitempty"`
		Truncated bool              `json:"truncated,omitempty"`
	}{typeMeta("NodeFlows"), meta, object, answer.truncated}, "flows", len(answer.flows), func(i int) any { return &answer.flows[i] })
	return nil
}

// parseObject returns the query's ObjectParameter, which the agent validates.
func parseObject(query url.Values) (string, error) {
	values := query[diagnostics.ObjectParameter]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", fmt.Errorf("invalid query: more than one %s", diagnostics.ObjectParameter)
	case len(values[0]) > maxObject || strings.ContainsFunc(values[0], func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }):
		return "", fmt.Errorf("invalid query: %s is not an object; write KIND/NAMESPACE/NAME or KIND/NAME", diagnostics.ObjectParameter)
	}
	return values[0], nil
}

// flowsAnswer decodes NodeFlows of an agent flow by flow, so that the answer of a compromised node takes no more memory than it has bytes.
type flowsAnswer struct {
	flows     []diagnostics.Flow
	truncated bool
}

// decode implements decoder.
func (a *flowsAnswer) decode(r io.Reader) error {
	limited := &limitedReader{r: r, total: maxFlowsAnswer}
	if err := a.decodeObject(json.NewDecoder(limited), limited); err != nil {
		var tooLarge *tooLargeError
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		if errors.As(err, &tooLarge) || !errors.As(err, &syntax) && !errors.As(err, &kind) && !errors.Is(err, errNotNodeFlows) {
			return err
		}
		return &invalidAnswerError{err}
	}
	return nil
}

// errNotNodeFlows is the error of JSON of another form.
var errNotNodeFlows = errors.New("it is not an object of kind NodeFlows")

func (a *flowsAnswer) decodeObject(d *json.Decoder, limited *limitedReader) error {
	limited.value = maxFlow
	if err := expect(d, '{'); err != nil {
		return err
	}
	for d.More() {
		limited.value = maxFlow
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "flows":
			err = a.decodeFlows(d, limited)
		case "truncated":
			limited.value = maxFlow
			var truncated bool
			err = d.Decode(&truncated)
			a.truncated = a.truncated || truncated
		default: // the controller knows the other fields
			limited.value = maxFlow
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	return expect(d, '}')
}

func (a *flowsAnswer) decodeFlows(d *json.Decoder, limited *limitedReader) error {
	start, err := d.Token()
	if err != nil || start == nil {
		return err
	}
	if start != json.Delim('[') {
		return errNotNodeFlows
	}
	for d.More() {
		limited.value = maxFlow
		if len(a.flows) == diagnostics.MaxFlows {
			a.truncated = true
			if err := d.Decode(new(json.RawMessage)); err != nil {
				return err
			}
			continue
		}
		flow := diagnostics.Flow{}
		if err := d.Decode(&flow); err != nil {
			return err
		}
		limitFlow(&flow)
		a.flows = append(a.flows, flow)
	}
	limited.value = maxFlow
	return expect(d, ']')
}

// expect reads a delimiter.
func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = errNotNodeFlows
	}
	return err
}

// limitFlow limits the strings of a flow to what clients can print.
func limitFlow(f *diagnostics.Flow) {
	f.Match, f.Actions, f.Desired = printable(f.Match, maxText), printable(f.Actions, maxText), printable(f.Desired, maxText)
	for _, s := range []*string{&f.TableName, &f.Cookie} {
		*s = printable(*s, maxName)
	}
	f.State = diagnostics.FlowState(printable(string(f.State), maxName))
	owners := f.Owners[:min(len(f.Owners), maxOwners)]
	f.Owners = make([]string, 0, len(owners))
	for _, owner := range owners {
		f.Owners = append(f.Owners, printable(owner, maxMessage))
	}
}

// limitedReader fails once more than total bytes were read, or more than value since value was set.
type limitedReader struct {
	r            io.Reader
	total, value int64
	read         int64
}

// Read implements io.Reader.
func (l *limitedReader) Read(p []byte) (int, error) {
	switch {
	case l.read >= l.total:
		return 0, &tooLargeError{l.total}
	case l.value <= 0:
		return 0, fmt.Errorf("one value of it: %w", &tooLargeError{maxFlow})
	}
	if limit := min(l.total-l.read, l.value); int64(len(p)) > limit {
		p = p[:limit]
	}
	n, err := l.r.Read(p)
	l.read += int64(n)
	l.value -= int64(n)
	return n, err
}
