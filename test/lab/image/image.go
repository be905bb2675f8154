// Package image writes container images without a container engine or a registry. An Image is one layer of files
// and a few words on what to run; Write makes of it the archive that `docker save` makes, which containerd, podman
// and docker all import. Equal images give equal bytes, so an archive can be cached by its ID.
//
// It can't read images, stack layers or build anything: what goes in must exist already.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"
)

// Image describes a container image for Linux on this machine's architecture.
type Image struct {
	// Ref is the full reference that the image is imported under: host, name and tag, "localhost/pause:lab".
	Ref string
	// Entrypoint and Cmd together are the command line; a pod's command replaces the first, its args the second.
	Entrypoint []string
	Cmd        []string
	// Env holds "NAME=value" settings.
	Env []string
	// Files is what the image holds, in any order. Folders above them are added, owned by root with mode 0755.
	Files []File
}

// ID returns the image ID, the digest of the image's configuration as "sha256:…". It depends on everything
// in the image but its reference. It reads every source file.
func (i *Image) ID() (string, error) {
	p, err := i.plan()
	if err != nil {
		return "", err
	}
	return "sha256:" + p.configDigest, nil
}

// Write writes the image's archive. It reads every source file twice, and fails if one changes in between.
func (i *Image) Write(w io.Writer) error {
	p, err := i.plan()
	if err != nil {
		return err
	}
	if err := p.write(w, i.Ref); err != nil {
		return fmt.Errorf("image %s: %w", i.Ref, err)
	}
	return nil
}

const layerName = "layer.tar"

// plan is an image with its digests known, ready to be written.
type plan struct {
	layer        layer
	layerSize    int64  // bytes
	layerDigest  string // hex
	config       []byte
	configDigest string // hex
}

func (i *Image) plan() (*plan, error) {
	if i.Ref == "" {
		return nil, errors.New("image: no reference: set Ref")
	}
	l, err := newLayer(i.Files)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	p := &plan{layer: l}
	if p.layerSize, p.layerDigest, err = l.writeDigested(io.Discard); err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	created := epoch().Format(time.RFC3339)
	p.config, err = json.Marshal(config{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Created:      created,
		Config:       runConfig{Entrypoint: i.Entrypoint, Cmd: i.Cmd, Env: i.Env, WorkingDir: "/"},
		RootFS:       rootFS{Type: "layers", DiffIDs: []string{"sha256:" + p.layerDigest}},
		History:      []history{{Created: created}},
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	digest := sha256.Sum256(p.config)
	p.configDigest = hex.EncodeToString(digest[:])
	return p, nil
}

func (p *plan) write(w io.Writer, ref string) error {
	manifest, err := json.Marshal([]manifestItem{{Config: p.configName(), RepoTags: []string{ref}, Layers: []string{layerName}}})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	if err := p.writeLayer(archive); err != nil {
		return err
	}
	if err := writeFile(archive, p.configName(), p.config); err != nil {
		return err
	}
	if err := writeFile(archive, "manifest.json", manifest); err != nil {
		return err
	}
	return archive.Close()
}

func (p *plan) configName() string { return p.configDigest + ".json" }

func (p *plan) writeLayer(archive *tar.Writer) error {
	if err := archive.WriteHeader(header(layerName, tar.TypeReg, 0o644, p.layerSize)); err != nil {
		return err
	}
	_, digest, err := p.layer.writeDigested(archive)
	if err != nil {
		return err
	}
	if digest != p.layerDigest {
		return errors.New("a source file changed while the archive was written: write it again")
	}
	return nil
}

func writeFile(archive *tar.Writer, name string, data []byte) error {
	if err := archive.WriteHeader(header(name, tar.TypeReg, 0o644, int64(len(data)))); err != nil {
		return err
	}
	_, err := archive.Write(data)
	return err
}

// epoch stands for every time in an image, since a real one would change the digest from build to build.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

// manifestItem is one image in manifest.json, in docker's spelling.
type manifestItem struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// config is the part of the OCI image configuration (image-spec, config.md) that a runtime needs.
type config struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      string    `json:"created"`
	Config       runConfig `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
	History      []history `json:"history"`
}

type runConfig struct {
	Entrypoint []string `json:"Entrypoint,omitempty"`
	Cmd        []string `json:"Cmd,omitempty"`
	Env        []string `json:"Env,omitempty"`
	WorkingDir string   `json:"WorkingDir"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type history struct {
	Created string `json:"created"`
}
