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

	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// modulePath is the module of the project's own programs.
const modulePath = "github.com/ovsdn/ovsdn"

// sbom is an image's bill of materials: the modules of its Go programs, from their build information, and its packages.
type sbom struct {
	image    Name
	version  version.Info
	packages []*spdx.Package
	contains []*spdx.Relationship
}

// SPDX IDs, without the prefix that the encoding adds.
const (
	spdxDocumentID common.ElementID = "DOCUMENT"
	spdxImageID    common.ElementID = "image"
)

// add adds a part of an image or a program, once per parent. The package URL is empty for a program.
func (b *sbom) add(parent, id common.ElementID, name, version, purl string) {
	if !slices.ContainsFunc(b.packages, func(p *spdx.Package) bool { return p.PackageSPDXIdentifier == id }) {
		p := newPackage(id, name, version)
		if purl != "" {
			p.PackageExternalReferences = []*spdx.PackageExternalReference{
				{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl},
			}
		}
		b.packages = append(b.packages, p)
	}
	r := relationship(parent, common.TypeRelationshipContains, id)
	if !slices.ContainsFunc(b.contains, func(other *spdx.Relationship) bool { return *other == *r }) {
		b.contains = append(b.contains, r)
	}
}

func newPackage(id common.ElementID, name, version string) *spdx.Package {
	return &spdx.Package{PackageSPDXIdentifier: id, PackageName: name, PackageVersion: version, PackageDownloadLocation: "NOASSERTION"}
}

func relationship(a common.ElementID, kind string, b common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.DocElementID{ElementRefID: a}, Relationship: kind, RefB: common.DocElementID{ElementRefID: b}}
}

func (b *sbom) addProgram(path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w; run make build", err)
	}
	name := filepath.Base(path)
	program, programVersion := spdxID("program", name), b.version.Version
	if info.Main.Path != modulePath {
		programVersion = info.Main.Version
	}
	b.add(spdxImageID, program, name, programVersion, "")
	b.addPart(program, "stdlib", strings.TrimPrefix(info.GoVersion, "go"), goPURL(info.GoVersion))
	modules := info.Deps
	if info.Main.Path != modulePath {
		modules = append(modules, &info.Main)
	}
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		b.addPart(program, module.Path, module.Version, "pkg:golang/"+module.Path+"@"+module.Version)
	}
	return nil
}

func (b *sbom) addPackages(lock debian.Lock) {
	for _, p := range lock {
		b.addPart(spdxImageID, p.Name, p.Version, debianPURL(p))
	}
}

func (b *sbom) addPart(parent common.ElementID, name, version, purl string) {
	b.add(parent, spdxID("part", name, version), name, version, purl)
}

func goPURL(version string) string { return "pkg:golang/stdlib@" + strings.TrimPrefix(version, "go") }

func debianPURL(p debian.Pin) string {
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-12", p.Name, strings.ReplaceAll(p.Version, "+", "%2B"), runtime.GOARCH)
}

// encode is deterministic.
func (b *sbom) encode() ([]byte, error) {
	d := spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: spdxDocumentID, DocumentName: b.image.Repository(),
		CreationInfo: &spdx.CreationInfo{
			Created:  b.version.Time().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "ovsdn-images-" + b.version.Version}},
		},
		Packages:      append([]*spdx.Package{newPackage(spdxImageID, b.image.Repository(), b.version.Version)}, b.packages...),
		Relationships: append([]*spdx.Relationship{relationship(spdxDocumentID, common.TypeRelationshipDescribe, spdxImageID)}, b.contains...),
	}
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	// A namespace must be unique to the document's content.
	sum := sha256.Sum256(content)
	d.DocumentNamespace = "https://github.com/ovsdn/ovsdn/sbom/" + string(b.image) + "/" + hex.EncodeToString(sum[:])
	return json.MarshalIndent(d, "", " ")
}

// spdxID may have letters, digits, dots and hyphens only.
func spdxID(words ...string) common.ElementID {
	return common.ElementID(regexp.MustCompile(`[^A-Za-z0-9.-]+`).ReplaceAllString(strings.Join(words, "-"), "-"))
}
