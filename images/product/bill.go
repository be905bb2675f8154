package product

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// bill is an image's bill of materials: the modules of its Go programs, as the go command wrote them into these, and its packages.
type bill struct {
	image    Name
	version  version.Info
	programs []spdxPackage
	parts    []part
}

// part is a module or a package, by its package URL.
type part struct {
	name, version, purl string
	// of is the SPDX ID of what contains it.
	of string
}

// The types of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/), as far as they are in use.
type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	License       string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string          `json:"SPDXID"`
	Name          string          `json:"name"`
	Version       string          `json:"versionInfo"`
	Location      string          `json:"downloadLocation"`
	FilesAnalyzed bool            `json:"filesAnalyzed"`
	References    []spdxReference `json:"externalRefs,omitempty"`
}

type spdxReference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	spdxDocumentID = "SPDXRef-DOCUMENT"
	spdxImageID    = "SPDXRef-image"
	spdxNone       = "NOASSERTION"
)

func (b *bill) addProgram(path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	name := filepath.Base(path)
	id := spdxID("program", name)
	b.programs = append(b.programs, spdxPackage{ID: id, Name: name, Version: b.version.Version, Location: spdxNone})
	b.parts = append(b.parts, part{name: "stdlib", version: strings.TrimPrefix(info.GoVersion, "go"), of: id, purl: goPURL(info.GoVersion)})
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		b.parts = append(b.parts, part{name: module.Path, version: module.Version, of: id, purl: "pkg:golang/" + module.Path + "@" + module.Version})
	}
	return nil
}

func (b *bill) addPackages(lock debian.Lock) {
	for _, p := range lock {
		b.parts = append(b.parts, part{name: p.Name, version: p.Version, of: spdxImageID, purl: debianPURL(p)})
	}
}

func goPURL(version string) string { return "pkg:golang/stdlib@" + strings.TrimPrefix(version, "go") }

func debianPURL(p debian.Pin) string {
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-12", p.Name, strings.ReplaceAll(p.Version, "+", "%2B"), runtime.GOARCH)
}

// encode gives equal bills equal bytes.
func (b *bill) encode() ([]byte, error) {
	d := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: spdxDocumentID, Name: b.image.Repository(),
		Creation: spdxCreation{Created: b.version.Time().Format(time.RFC3339), Creators: []string{"Tool: ovsdn-images-" + b.version.Version}},
		Packages: append([]spdxPackage{{ID: spdxImageID, Name: b.image.Repository(), Version: b.version.Version, Location: spdxNone}}, b.programs...),
	}
	contains := []spdxRelationship{{spdxDocumentID, "DESCRIBES", spdxImageID}}
	for _, p := range b.programs {
		contains = append(contains, spdxRelationship{spdxImageID, "CONTAINS", p.ID})
	}
	seen := map[string]bool{}
	for _, p := range b.parts {
		id := spdxID("part", p.name, p.version)
		if !seen[id] {
			seen[id] = true
			d.Packages = append(d.Packages, spdxPackage{
				ID: id, Name: p.name, Version: p.version, Location: spdxNone, References: []spdxReference{{"PACKAGE-MANAGER", "purl", p.purl}},
			})
		}
		contains = append(contains, spdxRelationship{p.of, "CONTAINS", id})
	}
	d.Relationships = slices.Compact(contains)
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	// A namespace must be unique to the document's content.
	sum := sha256.Sum256(content)
	d.Namespace = "https://github.com/ovsdn/ovsdn/sbom/" + string(b.image) + "/" + hex.EncodeToString(sum[:])
	return json.MarshalIndent(d, "", " ")
}

// spdxID may have letters, digits, dots and hyphens only.
func spdxID(words ...string) string {
	return "SPDXRef-" + regexp.MustCompile(`[^A-Za-z0-9.-]+`).ReplaceAllString(strings.Join(words, "-"), "-")
}
