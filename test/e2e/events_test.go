package e2e

import (
	"strings"
	"testing"
	"time"
)

// notWarned fails for each warning of a component about an object.
func (c *cluster) notWarned(t *testing.T, since time.Time, kind, name, component string) {
	t.Helper()
	warnings, err := c.Warnings(t.Context(), since, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range warnings {
		switch {
		case e.Source.Component != component:
		case strings.Contains(e.Message, "the API server does not answer"):
			t.Logf("the machine was slow: %s: %s", e.Reason, e.Message) // a program that starts gives it some seconds
		default:
			t.Errorf("%s warns about %s %s: %s: %s", component, kind, name, e.Reason, e.Message)
		}
	}
}
