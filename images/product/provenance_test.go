package product

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/images/debian"
)

// provenanceStatement has the fields of the statement by the names of the in-toto and SLSA specifications.
type provenanceStatement struct {
	Type          string `json:"_type"`
	PredicateType string
	Subject       []struct {
		Name   string
		Digest map[string]string
	}
	Predicate struct {
		BuildDefinition struct {
			BuildType            string
			ExternalParameters   map[string]string
			ResolvedDependencies []struct {
				URI    string
				Digest map[string]string
			}
		}
		RunDetails struct {
			Builder    struct{ ID string }
			Byproducts []struct {
				Name   string
				Digest map[string]string
			}
		}
	}
}

// checkProvenance reads the statement by the names of its fields, as verifiers do.
func checkProvenance(t *testing.T, source Source, n Name, digest string, sbom []byte) {
	t.Helper()
	content, err := source.Provenance(n, digest, sbom)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := source.Provenance(n, digest, sbom); err != nil || !bytes.Equal(again, content) {
		t.Errorf("got other bytes of equal input: %v", err)
	}
	var s provenanceStatement
	if err := json.Unmarshal(content, &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" || s.Predicate.BuildDefinition.BuildType == "" ||
		s.Predicate.RunDetails.Builder.ID == "" || len(s.Predicate.BuildDefinition.ExternalParameters) == 0 {
		t.Errorf("got a statement without required fields:\n%s", content)
	}
	if len(s.Subject) != 1 || "sha256:"+s.Subject[0].Digest["sha256"] != digest {
		t.Errorf("got subjects %v, want %s", s.Subject, digest)
	}
	inputs := s.Predicate.BuildDefinition.ResolvedDependencies
	if len(inputs) == 0 || inputs[0].Digest["gitCommit"] != source.Version.Revision {
		t.Errorf("got inputs %v, want commit %s first", inputs, source.Version.Revision)
	}
	if n != Controller {
		lock, err := debian.ReadLock(source.LockPath(n))
		if err != nil {
			t.Fatal(err)
		}
		last := inputs[len(inputs)-1]
		if want := lock[len(lock)-1]; last.Digest["sha256"] != want.SHA256 || !strings.HasPrefix(last.URI, "pkg:deb/debian/"+want.Name+"@") {
			t.Errorf("got last input %v, want package %v", last, want)
		}
	}
	sum := sha256.Sum256(sbom)
	if by := s.Predicate.RunDetails.Byproducts; len(by) != 1 || by[0].Digest["sha256"] != hex.EncodeToString(sum[:]) {
		t.Errorf("got byproducts %v, want the bill of materials", by)
	}
}

func TestComponent(t *testing.T) {
	got := string(Component(map[Name]string{Node: "sha256:aa", Controller: "sha256:bb"}))
	want := "kind: Component\nimages:\n- {name: ovsdn/controller, digest: \"sha256:bb\"}\n- {name: ovsdn/node, digest: \"sha256:aa\"}\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want %s at its end", got, want)
	}
}
