package cniserver

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

const testConfig = `{"cniVersion":"1.0.0","name":"ovsdn","type":"ovsdn-cni"}`

func TestDecodeRequest(t *testing.T) {
	tests := []struct {
		name string
		in   string
		want uint // CNI error code; 0: no error
	}{
		{"add", `{"command":"ADD","containerID":"abc","netns":"/run/netns/x","ifName":"eth0","config":` + testConfig + `}`, 0},
		{"del without netns", `{"command":"DEL","containerID":"abc","ifName":"eth0","config":` + testConfig + `}`, 0},
		{"gc", `{"command":"GC","config":` + testConfig + `}`, 0},
		{"status", `{"command":"STATUS","config":` + testConfig + `}`, 0},
		{"a field of a later version", `{"command":"STATUS","later":1,"config":` + testConfig + `}`, 0},
		{"empty", ``, types.ErrDecodingFailure},
		{"no object", `[]`, types.ErrDecodingFailure},
		{"something behind it", `{"command":"STATUS","config":` + testConfig + `}{}`, types.ErrDecodingFailure},
		{"no config", `{"command":"STATUS"}`, types.ErrDecodingFailure},
		{"config is no object", `{"command":"STATUS","config":[]}`, types.ErrDecodingFailure},
		{"config without name", `{"command":"STATUS","config":{}}`, types.ErrInvalidNetworkConfig},
		{"negative timeout", `{"command":"STATUS","timeoutMillis":-1,"config":` + testConfig + `}`, types.ErrDecodingFailure},
		{"no command", `{"config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"unknown command", `{"command":"EXPLODE","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"add without netns", `{"command":"ADD","containerID":"abc","ifName":"eth0","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"no container", `{"command":"DEL","ifName":"eth0","config":` + testConfig + `}`, types.ErrUnknownContainer},
		{"container with slashes", `{"command":"DEL","containerID":"../../etc/passwd","ifName":"eth0","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"long container", `{"command":"DEL","containerID":"` + strings.Repeat("a", 256) + `","ifName":"eth0","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"no interface", `{"command":"DEL","containerID":"abc","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"long interface", `{"command":"DEL","containerID":"abc","ifName":"0123456789abcdef","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
		{"interface with slash", `{"command":"DEL","containerID":"abc","ifName":"a/b","config":` + testConfig + `}`, types.ErrInvalidEnvironmentVariables},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodeRequest([]byte(tt.in))
			if got := code(t, err); got != tt.want {
				t.Errorf("code %d, want %d (%v)", got, tt.want, err)
			}
		})
	}
}

// code returns the CNI error code, 0 without an error.
func code(t *testing.T, err error) uint {
	t.Helper()
	if err == nil {
		return 0
	}
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("not a CNI error: %v", err)
	}
	return e.Code
}

func TestRequest_timeout(t *testing.T) {
	for millis, want := range map[int64]time.Duration{
		0:             MaxTimeout,
		1:             time.Millisecond,
		1500:          1500 * time.Millisecond,
		1 << 62:       MaxTimeout, // would overflow in nanoseconds
		3_600_000:     MaxTimeout,
		119_000:       119 * time.Second,
		9_223_372_036: MaxTimeout,
	} {
		if got := (&Request{TimeoutMillis: millis}).timeout(); got != want {
			t.Errorf("%d ms: %s, want %s", millis, got, want)
		}
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add(`{"command":"ADD","containerID":"abc","netns":"/run/netns/x","ifName":"eth0","args":"A=b","timeoutMillis":5,"config":` + testConfig + `}`)
	f.Add(`{"command":"GC","config":{"name":"ovsdn","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}}`)
	f.Add(`{"command":"DEL","containerID":"..","ifName":".","config":{"name":"x","prevResult":{}}}`)
	f.Fuzz(func(t *testing.T, in string) {
		req, err := DecodeRequest([]byte(in))
		if err != nil {
			if code(t, err) == 0 {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		if d := req.timeout(); d <= 0 || d > MaxTimeout {
			t.Errorf("timeout %s", d)
		}
		if strings.ContainsAny(req.ContainerID, "/\x00") && req.Command != CommandGC && req.Command != CommandStatus {
			t.Errorf("container id %q is not safe in a file name", req.ContainerID)
		}
		// A decoded request is the same after encoding and decoding.
		data, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeRequest(data)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		// Encoding may compact and escape nested JSON.
		req.Config, again.Config = nil, nil
		if diff := cmp.Diff(req, again); diff != "" {
			t.Error(diff)
		}
	})
}
