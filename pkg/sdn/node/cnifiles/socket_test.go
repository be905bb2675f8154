package cnifiles

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// lostSocket answers one Restore after the other.
type lostSocket struct {
	answers []restoreAnswer
	stop    func() // called when no answer is left
}

type restoreAnswer struct {
	restored bool
	err      error
}

func (s *lostSocket) Restore() (bool, error) {
	if len(s.answers) == 0 {
		s.stop()
		return false, nil
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	return a.restored, a.err
}

func TestSocketReconciler(t *testing.T) {
	readOnly := errors.New("read-only file system")
	for name, tc := range map[string]struct {
		answers []restoreAnswer
		want    []string
		inUse   bool
	}{
		"never lost":        {[]restoreAnswer{{}, {}}, nil, false},
		"restored":          {[]restoreAnswer{{}, {restored: true}, {}}, []string{"Warning CNISocketRestored"}, false},
		"fails for a while": {[]restoreAnswer{{err: readOnly}, {err: readOnly}, {restored: true}}, []string{"Warning NetworkSetupFailed", "Warning CNISocketRestored"}, false},
		"another agent":     {[]restoreAnswer{{err: &cniserver.InUseError{Path: "/run/x"}}}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var got reports
				k := &Socket{socket: &lostSocket{tc.answers, cancel}, report: got.add, period: socketCheck}
				if err := k.Run(ctx); cniserver.IsInUse(err) != tc.inUse || err != nil && !tc.inUse {
					t.Errorf("got %v, want an InUseError: %v", err, tc.inUse)
				}
				if len(got) != len(tc.want) {
					t.Fatalf("reported %q, want %q", got, tc.want)
				}
				for i, want := range tc.want {
					if !strings.HasPrefix(got[i], want) {
						t.Errorf("reported %q, want %q", got[i], want)
					}
				}
				if err := k.Healthy(); err != nil {
					t.Errorf("healthy: %v after the last answer", err)
				}
			})
		})
	}
}
