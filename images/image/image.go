// Package image writes container images without a container engine or a registry. An Image is one layer of files
// and a few words on what to run; Write makes of it an OCI archive, the tar of an OCI image layout (image-spec,
// image-layout.md), with the manifest.json of `docker save` beside it, so that containerd, podman, skopeo and every docker
// import it. Equal images give equal bytes, so an archive can be cached by its ID.
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
	// User is "UID:GID" in decimal, or empty for root.
	User string
	// Labels are written twice, as labels of the configuration and as annotations of the manifest, since tools look at one or the other.
	Labels map[string]string
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
	return p.config.digest, nil
}

// Digest returns the digest of the image's manifest as "sha256:…", by which registries know the image if it is pushed unchanged. It depends on
// everything in the image but its reference. It reads every source file.
func (i *Image) Digest() (string, error) {
	p, err := i.plan()
	if err != nil {
		return "", err
	}
	return p.manifest.digest, nil
}

// Size is that of the unpacked image in bytes, as its layer's tar.
func (i *Image) Size() (int64, error) {
	p, err := i.plan()
	if err != nil {
		return 0, err
	}
	return p.layerDescriptor.Size, nil
}

// Write writes the image's archive. It reads every source file twice, and fails if one changes in between.
func (i *Image) Write(w io.Writer) error {
	p, err := i.plan()
	if err != nil {
		return err
	}
	if err := p.write(w); err != nil {
		return fmt.Errorf("image %s: %w", i.Ref, err)
	}
	return nil
}

// Media types of the image-spec (media-types.md). The layer is not compressed: most archives never leave their machine.
const (
	mediaTypeIndex    = "application/vnd.oci.image.index.v1+json"
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// Annotations by which containerd and others find an archive's reference.
const (
	annotationContainerdName = "io.containerd.image.name"
	annotationRefName        = "org.opencontainers.image.ref.name"
)

// blob is a small file of an archive, named by its digest.
type blob struct {
	content []byte
	digest  string // "sha256:…"
}

func newBlob(value any) (blob, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return blob{}, err
	}
	sum := sha256.Sum256(content)
	return blob{content: content, digest: "sha256:" + hex.EncodeToString(sum[:])}, nil
}

func (b blob) descriptor(mediaType string) descriptor {
	return descriptor{MediaType: mediaType, Digest: b.digest, Size: int64(len(b.content))}
}

// blobPath is where a blob lies in the archive.
func blobPath(digest string) string { return "blobs/sha256/" + digest[len("sha256:"):] }

// plan is an image with its digests known, ready to be written.
type plan struct {
	ref              string
	layer            layer
	layerDescriptor  descriptor
	config, manifest blob
}

func (i *Image) plan() (*plan, error) {
	if i.Ref == "" {
		return nil, errors.New("image: no reference: set Ref")
	}
	p, err := i.digested()
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	return p, nil
}

func (i *Image) digested() (*plan, error) {
	l, err := newLayer(i.Files)
	if err != nil {
		return nil, err
	}
	p := &plan{ref: i.Ref, layer: l}
	size, digest, err := l.writeDigested(io.Discard)
	if err != nil {
		return nil, err
	}
	p.layerDescriptor = descriptor{MediaType: mediaTypeLayer, Digest: "sha256:" + digest, Size: size}
	created := epoch().Format(time.RFC3339)
	p.config, err = newBlob(config{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Created:      created,
		Config:       runConfig{User: i.User, Entrypoint: i.Entrypoint, Cmd: i.Cmd, Env: i.Env, Labels: i.Labels, WorkingDir: "/"},
		RootFS:       rootFS{Type: "layers", DiffIDs: []string{p.layerDescriptor.Digest}},
		History:      []history{{Created: created}},
	})
	if err != nil {
		return nil, err
	}
	p.manifest, err = newBlob(manifest{
		SchemaVersion: 2, MediaType: mediaTypeManifest, Annotations: i.Labels,
		Config: p.config.descriptor(mediaTypeConfig), Layers: []descriptor{p.layerDescriptor},
	})
	return p, err
}

func (p *plan) write(w io.Writer) error {
	manifest := p.manifest.descriptor(mediaTypeManifest)
	manifest.Annotations = map[string]string{annotationContainerdName: p.ref, annotationRefName: p.ref}
	index, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaTypeIndex, Manifests: []descriptor{manifest}})
	if err != nil {
		return err
	}
	dockerManifest, err := json.Marshal([]manifestItem{{
		Config: blobPath(p.config.digest), RepoTags: []string{p.ref}, Layers: []string{blobPath(p.layerDescriptor.Digest)},
	}})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	if err := p.writeLayer(archive); err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{blobPath(p.config.digest), p.config.content},
		{blobPath(p.manifest.digest), p.manifest.content},
		{"index.json", index},
		{"manifest.json", dockerManifest},
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
	} {
		if err := writeFile(archive, f.name, f.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

func (p *plan) writeLayer(archive *tar.Writer) error {
	if err := archive.WriteHeader(header(blobPath(p.layerDescriptor.Digest), tar.TypeReg, 0o644, p.layerDescriptor.Size)); err != nil {
		return err
	}
	_, digest, err := p.layer.writeDigested(archive)
	if err != nil {
		return err
	}
	if "sha256:"+digest != p.layerDescriptor.Digest {
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
