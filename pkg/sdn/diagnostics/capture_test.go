package diagnostics

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCaptureSpec_Complete(t *testing.T) {
	var s CaptureSpec
	want := CaptureSpec{DurationSeconds: 30, MaxBytes: 16 << 20, SnapLength: 256}
	if errs := s.Complete(); len(errs) > 0 || s != want || s.Filter() != "" || s.Prefix().IsValid() {
		t.Errorf("got %+v, filter %q, errors %v, want %+v", s, s.Filter(), errs, want)
	}
	s = CaptureSpec{DurationSeconds: 600, MaxBytes: 256 << 20, MaxPackets: 1, SnapLength: 65535, Protocol: "TCP", Port: 65535, Host: "10.128.1.7/14"}
	if errs := s.Complete(); len(errs) > 0 || s.Host != "10.128.0.0/14" || s.Filter() != "tcp and port 65535 and net 10.128.0.0/14" {
		t.Errorf("got %+v, filter %q, errors %v", s, s.Filter(), errs)
	}
	for want, s := range map[string]CaptureSpec{
		"spec.durationSeconds": {DurationSeconds: 601},
		"must be between 1":    {DurationSeconds: -1},
		"spec.maxBytes":        {MaxBytes: 4095},
		"4096 and 268435456":   {MaxBytes: 256<<20 + 1},
		"spec.maxPackets":      {MaxPackets: -1},
		"spec.snapLength":      {SnapLength: 65536},
		"64 and 65535":         {SnapLength: 63},
		"spec.port":            {Port: 65536},
		"ICMP has no ports":    {Protocol: "ICMP", Port: 1},
		"ARP has no ports":     {Protocol: "ARP", Port: 1},
		"spec.protocol":        {Protocol: "tcp"},
		"spec.host":            {Host: "2001:db8::1"},
		"prefix such as":       {Host: "10.0.0.0/33"},
		"write an IPv4":        {Host: "web"},
	} {
		if got := s.Complete().ToAggregate(); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

// An agent reads what a controller writes, and nothing else.
func TestParseCaptureQuery(t *testing.T) {
	s := CaptureSpec{DurationSeconds: 5, MaxBytes: 5000, MaxPackets: 7, SnapLength: 100, Protocol: "UDP", Port: 53, Host: "10.0.0.1/32"}
	query := s.Query()
	query.Set(PodParameter, "pod/a/web")
	query.Set(PodUIDParameter, "u1")
	got, others, err := ParseCaptureQuery(query)
	if diff := cmp.Diff(s, got); diff != "" || err != nil || others[PodParameter] != "pod/a/web" || others[PodUIDParameter] != "u1" {
		t.Errorf("got others %v, error %v, spec (-want +got):\n%s", others, err, diff)
	}
	for text, want := range map[string]string{
		"port=53&direction=in":   `parameter "direction" is unknown`,
		"port=53&port=54":        `parameter "port" is set 2 times`,
		"port=x":                 "parameter port is \"x\"",
		"port=99999999999":       "parameter port",
		"port=-1":                "spec.port",
		"protocol=GRE":           "spec.protocol",
		"host=10.0.0.0/8&host=":  `parameter "host" is set 2 times`,
		"durationSeconds=100000": "spec.durationSeconds",
	} {
		query, err := url.ParseQuery(text)
		if err == nil {
			_, _, err = ParseCaptureQuery(query)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func TestParseCaptureEnd(t *testing.T) {
	for comment, want := range map[string]CaptureEnd{
		CaptureEndDuration.Comment("the time: is over"): CaptureEndDuration,
		CaptureEndInterface.Comment("x"):                CaptureEndInterface,
		"DurationReached":                               "",
		"Finished: x":                                   "",
		"":                                              "",
	} {
		end, reason, ok := ParseCaptureEnd(comment)
		if ok != (want != "") || ok && (end != want || reason == "") {
			t.Errorf("%q: got %q, %q, %v, want %q", comment, end, reason, ok, want)
		}
	}
	if end, reason, _ := ParseCaptureEnd("DurationReached: the time: is over"); !end.IsComplete() || reason != "the time: is over" || CaptureEndInterface.IsComplete() {
		t.Errorf("got %q, %q", end, reason)
	}
}
