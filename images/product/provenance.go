package product

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/images/image"
)

// sourceURI names the source tree in provenance.
const sourceURI = "https://github.com/ovsdn/ovsdn"

// The types of an in-toto Statement v1 (https://in-toto.io/Statement/v1) with the predicate SLSA Provenance v1 (https://slsa.dev/provenance/v1),
// as far as they are in use.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type provenance struct {
	Definition buildDefinition `json:"buildDefinition"`
	Run        runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	Type         string            `json:"buildType"`
	Parameters   map[string]string `json:"externalParameters"`
	Dependencies []resource        `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder    map[string]string `json:"builder"`
	Byproducts []resource        `json:"byproducts,omitempty"`
}

// Provenance returns the statement of what an image was built from: the source's commit, the Go toolchain and Debian's packages. The subject is the
// image's manifest, whose digest is its name in a registry; sbom is the image's bill of materials. It has no time and no build number, so that equal
// input gives equal bytes. It proves nothing until it is signed.
func (s Source) Provenance(n Name, manifestDigest string, sbom []byte) ([]byte, error) {
	algorithm, sum, ok := strings.Cut(manifestDigest, ":")
	if !ok {
		return nil, fmt.Errorf("image %s: digest %q has no algorithm", n.Repository(), manifestDigest)
	}
	inputs, err := s.inputs(n)
	if err != nil {
		return nil, fmt.Errorf("provenance of image %s: %w", n.Repository(), err)
	}
	sbomSum := sha256.Sum256(sbom)
	return json.MarshalIndent(statement{
		Type:          "https://in-toto.io/Statement/v1",
		Subject:       []resource{{Name: n.Repository(), Digest: map[string]string{algorithm: sum}}},
		PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: provenance{
			Definition: buildDefinition{
				Type: sourceURI + "/images/build/archives@v1",
				Parameters: map[string]string{
					"image": string(n), "version": s.Version.Version, "created": s.Version.Created, "platform": "linux/" + runtime.GOARCH,
				},
				Dependencies: inputs,
			},
			Run: runDetails{
				Builder:    map[string]string{"id": sourceURI + "/images/build"},
				Byproducts: []resource{{Name: SBOMFile(n), Digest: map[string]string{"sha256": hex.EncodeToString(sbomSum[:])}}},
			},
		},
	}, "", " ")
}

// inputs returns the dependencies from which the image is built. The modules of the programs are in the bill of materials, and pinned by the commit's go.sum.
func (s Source) inputs(n Name) ([]resource, error) {
	list := []resource{{URI: "git+" + sourceURI, Digest: map[string]string{"gitCommit": s.Version.Revision}}}
	for _, p := range programs(n) {
		info, err := buildinfo.ReadFile(filepath.Join(s.BinDir, filepath.Base(p)))
		if err != nil {
			return nil, fmt.Errorf("%w; run make build", err)
		}
		toolchain := resource{URI: goPURL(info.GoVersion)}
		if len(list) == 1 {
			list = append(list, toolchain)
		} else if list[1].URI != toolchain.URI {
			return nil, fmt.Errorf("programs of the image are built with %s and %s; run make build", list[1].URI, toolchain.URI)
		}
	}
	if n == Controller {
		return list, nil
	}
	lock, err := debian.ReadLock(s.LockPath(n))
	if err != nil {
		return nil, err
	}
	for _, p := range lock {
		list = append(list, resource{URI: debianPURL(p), Digest: map[string]string{"sha256": p.SHA256}})
	}
	return list, nil
}

// SBOMFile returns the base name of the image's bill of materials, in the image and beside its archive.
func SBOMFile(n Name) string { return "ovsdn-" + string(n) + ".spdx.json" }

// SBOM returns the bill of materials that the image holds.
func SBOM(n Name, i *image.Image) ([]byte, error) {
	for _, f := range i.Files {
		if f.Path == sbomDir+SBOMFile(n) {
			return f.Content, nil
		}
	}
	return nil, fmt.Errorf("image %s has no %s", n.Repository(), sbomDir+SBOMFile(n))
}

const sbomDir = "/usr/share/sbom/"

// Component returns a component for kustomize that replaces the images' tags with the digests of their manifests.
func Component(digests map[Name]string) []byte {
	var b strings.Builder
	b.WriteString("# Written by make images: the digests of its archives, for components: of a kustomization (docs/install.md).\n" +
		"apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nimages:\n")
	for _, n := range All() {
		if digest, ok := digests[n]; ok {
			fmt.Fprintf(&b, "- {name: %s, digest: %q}\n", n.Repository(), digest)
		}
	}
	return []byte(b.String())
}
