package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
)

func TestIdledAt(t *testing.T) {
	at := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Time{
		"2026-03-01T12:00:00Z":      at,
		"2026-03-01T13:00:00+01:00": at,
		"":                          {},
		"true":                      {},
		"2026-03-01":                {},
		"0001-01-01T00:00:00Z":      {},
	} {
		got, ok := IdledAt(map[string]string{unidlingv1alpha1.IdledAtAnnotation: value})
		if ok != !want.IsZero() || !got.Equal(want) && ok {
			t.Errorf("%q: got %s, %v, want %s", value, got, ok, want)
		}
	}
	if got, ok := IdledAt(nil); ok {
		t.Errorf("without the annotation: got %s, want none", got)
	}
}

func TestParseUnidleTargets(t *testing.T) {
	tooMany := "[" + strings.TrimSuffix(strings.Repeat(`{"kind":"Deployment","name":"web","replicas":1},`, MaxUnidleTargets+1), ",") + "]"
	for _, c := range []struct {
		name, value string
		want        []UnidleTarget
		fault       string // a part of the error
	}{
		{"of oc idle", `[{"kind":"Deployment","name":"web","group":"apps","replicas":2},{"kind":"ReplicationController","name":"db","replicas":1}]`,
			[]UnidleTarget{{"apps", "Deployment", "web", 2}, {"", "ReplicationController", "db", 1}}, ""},
		{"without groups", `[{"kind":"StatefulSet","name":"a","replicas":1},{"kind":"ReplicaSet","name":"b","replicas":1},{"kind":"DeploymentConfig","name":"c","replicas":1}]`,
			[]UnidleTarget{{"apps", "StatefulSet", "a", 1}, {"apps", "ReplicaSet", "b", 1}, {"apps.openshift.io", "DeploymentConfig", "c", 1}}, ""},
		{"of an API version", `[{"kind":"Rollout","name":"a","apiVersion":"argoproj.io/v1alpha1","replicas":1000}]`,
			[]UnidleTarget{{"argoproj.io", "Rollout", "a", 1000}}, ""},
		{"of OpenShift 3", `[{"kind":"DeploymentConfig","name":"a","apiVersion":"v1","replicas":1}]`, []UnidleTarget{{"apps.openshift.io", "DeploymentConfig", "a", 1}}, ""},
		{"of an invalid API version", `[{"kind":"Rollout","name":"a","apiVersion":"a/b/c","replicas":1}]`, nil, "write the group"},
		{"kind without group", `[{"kind":"Rollout","name":"a","replicas":1}]`, nil, `[0]: kind "Rollout" has no group`},
		{"name with a path", `[{"kind":"Deployment","name":"../../x","replicas":1}]`, nil, "is not the name of an object"},
		{"without name", `[{"kind":"Deployment","replicas":1}]`, nil, "is not the name of an object"},
		{"no replicas", `[{"kind":"Deployment","name":"web"}]`, nil, "0 replicas of Deployment web: write 1 to 1000"},
		{"negative replicas", `[{"kind":"Deployment","name":"web","replicas":-1}]`, nil, "write 1 to 1000"},
		{"too many replicas", `[{"kind":"Deployment","name":"web","replicas":1001}]`, nil, "write 1 to 1000"},
		{"more than int32", `[{"kind":"Deployment","name":"web","replicas":4294967297}]`, nil, "is not a JSON list"},
		{"one of two is invalid", `[{"kind":"Deployment","name":"web","replicas":1},{"kind":"Deployment","name":"web"}]`, nil, "[1]: 0 replicas"},
		{"too many", tooMany, nil, "21 objects are too many"},
		{"too long", strings.Repeat(" ", maxUnidleListBytes+1), nil, "bytes are too many"},
		{"empty list", "[]", nil, "the list is empty"},
		{"null", "null", nil, "the list is empty"},
		{"no value", "", nil, "is not a JSON list"},
		{"no list", `{"kind":"Deployment"}`, nil, "is not a JSON list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseUnidleTargets(c.value)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
			if (err != nil) != (c.fault != "") || !strings.Contains(fmt.Sprint(err), c.fault) {
				t.Errorf("got error %v, want %q", err, c.fault)
			}
		})
	}
}

func FuzzParseUnidleTargets(f *testing.F) {
	f.Add(`[{"kind":"Deployment","name":"web","group":"apps","replicas":2}]`)
	f.Add(`[{"kind":"Rollout","name":"a","apiVersion":"argoproj.io/v1alpha1","replicas":1000}]`)
	f.Add(`[{"kind":"ReplicationController","name":"a","replicas":1}]`)
	f.Add(`[{"kind":"Pod","name":"a","apiVersion":"v1","replicas":1}]`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, value string) {
		targets, err := ParseUnidleTargets(value)
		if err != nil {
			return
		}
		if len(targets) == 0 || len(targets) > MaxUnidleTargets {
			t.Fatalf("got %d targets, want 1 to %d", len(targets), MaxUnidleTargets)
		}
		for _, target := range targets {
			if target.Replicas < 1 || target.Replicas > MaxUnidleReplicas || strings.Contains(target.Name, "/") {
				t.Errorf("got target %+v", target)
			}
		}
		text, err := FormatUnidleTargets(targets)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseUnidleTargets(text)
		if diff := cmp.Diff(targets, again); err != nil && len(text) <= maxUnidleListBytes || err == nil && diff != "" {
			t.Errorf("parsed again: error %v (-want +got):\n%s", err, diff)
		}
	})
}
