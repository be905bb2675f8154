package diagnosticsapi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

const maxNodeName = 253 // bytes, as of all names of such objects

// listSelection is the part of all nodes that a list has.
type listSelection struct {
	labels labels.Selector
	name   string // of the only node; "": all
	after  string // only names after it
	limit  int    // 0: none
}

// parseSelection parses the query of a list. Parameters of watches and of resource versions have no meaning for objects that are computed.
func parseSelection(query url.Values) (s listSelection, err error) {
	if s.labels, err = labels.Parse(query.Get("labelSelector")); err != nil {
		return s, fmt.Errorf("invalid labelSelector: %w", err)
	}
	if s.name, err = parseFieldSelector(query.Get("fieldSelector")); err != nil {
		return s, err
	}
	if limit := query.Get("limit"); limit != "" {
		if s.limit, err = strconv.Atoi(limit); err != nil || s.limit < 0 {
			return s, errors.New("invalid limit: write a number that is not negative")
		}
	}
	if next := query.Get("continue"); next != "" {
		after, err := base64.RawURLEncoding.DecodeString(next)
		if err != nil || len(after) == 0 || len(after) > maxNodeName {
			return s, errors.New("invalid continue: list again without it")
		}
		s.after = string(after)
	}
	return s, nil
}

// parseFieldSelector returns the name that the selector requires; "" if it selects all objects.
func parseFieldSelector(text string) (name string, err error) {
	s, err := fields.ParseSelector(text)
	if err != nil {
		return "", fmt.Errorf("invalid fieldSelector: %w", err)
	}
	if s.Empty() {
		return "", nil
	}
	required := s.Requirements()
	if len(required) != 1 || required[0].Field != metav1.ObjectNameField || required[0].Operator != selection.Equals && required[0].Operator != selection.DoubleEquals ||
		required[0].Value == "" || len(required[0].Value) > maxNodeName {
		return "", fmt.Errorf("fieldSelector is not supported: only %s=NODE is", metav1.ObjectNameField)
	}
	return required[0].Value, nil
}

// page returns the selected nodes of all, which are in the order of names, and the metadata of their list.
func (s listSelection) page(all []Node) (nodes []Node, meta metav1.ListMeta) {
	for _, n := range all {
		if (s.name == "" || s.name == n.Name) && n.Name > s.after && s.labels.Matches(labels.Set(n.Labels)) {
			nodes = append(nodes, n)
		}
	}
	if rest := len(nodes) - s.limit; s.limit > 0 && rest > 0 {
		nodes = slices.Clip(nodes[:s.limit])
		meta.Continue = base64.RawURLEncoding.EncodeToString([]byte(nodes[s.limit-1].Name))
		if s.labels.Empty() && s.name == "" {
			remaining := int64(rest)
			meta.RemainingItemCount = &remaining
		}
	}
	return nodes, meta
}

// isTrue reports whether the query's parameter is set to true.
func isTrue(query url.Values, name string) bool {
	value, ok := query[name]
	if !ok {
		return false
	}
	set, err := strconv.ParseBool(value[0])
	return err != nil || set // "watch" without a value is true, and an invalid value is not a list
}
