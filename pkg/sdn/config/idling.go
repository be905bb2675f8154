package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of the objects that a service wakes: users of a namespace write the list.
const (
	MaxUnidleTargets   = 20
	MaxUnidleReplicas  = 1000
	maxUnidleListBytes = 16 << 10
)

// UnidleTarget is an object in the namespace of an idled service, whose scale subresource gets the replicas when a packet for the service arrives.
type UnidleTarget struct {
	Group, Kind, Name string
	Replicas          int32
}

// String returns the target for messages, such as "Deployment web".
func (t UnidleTarget) String() string { return Shorten(t.Kind) + " " + Shorten(t.Name) }

// IdledAt returns since when a service is idled, by the annotations of the Service or of its Endpoints. A value that is no time does not idle it.
func IdledAt(annotations map[string]string) (time.Time, bool) {
	value, ok := annotations[unidlingv1alpha1.IdledAtAnnotation]
	if !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339, value)
	return t, err == nil && !t.IsZero()
}

// ParseUnidleTargets parses the annotation idling.alpha.openshift.io/unidle-targets. An invalid target makes the whole list invalid.
func ParseUnidleTargets(value string) ([]UnidleTarget, error) {
	if len(value) > maxUnidleListBytes {
		return nil, fmt.Errorf("%d bytes are too many: write at most %d", len(value), maxUnidleListBytes)
	}
	var list []unidlingv1alpha1.RecordedScaleReference
	if err := json.Unmarshal([]byte(value), &list); err != nil {
		return nil, fmt.Errorf(`%q is not a JSON list of {"kind", "name", "group", "replicas"}: %w`, Shorten(value), err)
	}
	switch {
	case len(list) == 0:
		return nil, errors.New("the list is empty: write at least one object to scale")
	case len(list) > MaxUnidleTargets:
		return nil, fmt.Errorf("%d objects are too many: write at most %d", len(list), MaxUnidleTargets)
	}
	targets := make([]UnidleTarget, 0, len(list))
	var errs []error
	for i, r := range list {
		t, err := unidleTarget(r)
		if err != nil {
			errs = append(errs, &FieldError{Field: fmt.Sprintf("[%d]", i), Err: err})
		}
		targets = append(targets, t)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return targets, nil
}

func unidleTarget(r unidlingv1alpha1.RecordedScaleReference) (UnidleTarget, error) {
	t := UnidleTarget{Group: r.Group, Kind: r.Kind, Name: r.Name, Replicas: r.Replicas}
	if faults := validation.IsDNS1123Subdomain(t.Name); len(faults) > 0 {
		return t, fmt.Errorf("%q is not the name of an object: %s", Shorten(t.Name), strings.Join(faults, ", "))
	}
	if t.Replicas < 1 || t.Replicas > MaxUnidleReplicas {
		return t, fmt.Errorf("%d replicas of %s: write 1 to %d", t.Replicas, t, MaxUnidleReplicas)
	}
	if t.Group == "" && r.APIVersion != "" {
		gv, err := schema.ParseGroupVersion(r.APIVersion)
		if err != nil {
			return t, fmt.Errorf("%q is not an API version: write the group instead", Shorten(r.APIVersion))
		}
		t.Group = gv.Group
	}
	if t.Group == "" {
		return t, t.setDefaultGroup()
	}
	return t, nil
}

// setDefaultGroup sets the group of references without one, as earlier versions of `oc idle` wrote them.
func (t *UnidleTarget) setDefaultGroup() error {
	switch t.Kind {
	case "Deployment", "ReplicaSet", "StatefulSet":
		t.Group = "apps"
	case "DeploymentConfig":
		t.Group = "apps.openshift.io"
	case "ReplicationController":
	default:
		return fmt.Errorf("kind %q has no group: write one", Shorten(t.Kind))
	}
	return nil
}

// FormatUnidleTargets returns the value of the annotation idling.alpha.openshift.io/unidle-targets.
func FormatUnidleTargets(targets []UnidleTarget) (string, error) {
	list := make([]unidlingv1alpha1.RecordedScaleReference, 0, len(targets))
	for _, t := range targets {
		list = append(list, unidlingv1alpha1.RecordedScaleReference{
			CrossGroupObjectReference: unidlingv1alpha1.CrossGroupObjectReference{Kind: t.Kind, Name: t.Name, Group: t.Group},
			Replicas:                  t.Replicas,
		})
	}
	value, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encode the objects of an idled service: %w", err)
	}
	return string(value), nil
}
