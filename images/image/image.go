// Package image describes container images and writes them without a container engine or a registry. An Image is one layer of files
// and a configuration; Write writes it as an OCI archive, the tar of an OCI image layout (image-spec,
// image-layout.md), with the manifest.json of `docker save` beside it, so that containerd, podman, skopeo and every docker
// import it. Equal images give equal bytes, so an archive can be cached by its ID. The configuration, the manifests and the digests come from
// go-containerregistry; the layer and the archive are tars of this package, since that library has no reproducible ones.
// It can't read images, stack layers or build files.
package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
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
	// Files are the entries of the image, in any order. Missing parent folders are added, owned by root with mode 0755.
	Files []File
}

// ID returns the image ID, the digest of the image's configuration as "sha256:…". It depends on everything
// in the image but its reference. It reads every source file.
func (i *Image) ID() (string, error) {
	built, err := i.build()
	if err != nil {
		return "", err
	}
	id, err := built.ConfigName()
	return id.String(), err
}

// Digest returns the digest of the image's manifest as "sha256:…", by which registries know the image if it is pushed unchanged. It depends on
// everything in the image but its reference. It reads every source file.
func (i *Image) Digest() (string, error) {
	built, err := i.build()
	if err != nil {
		return "", err
	}
	digest, err := built.Digest()
	return digest.String(), err
}

// Size returns the size of the unpacked image in bytes, as its layer's tar. It reads every source file.
func (i *Image) Size() (int64, error) {
	built, err := i.build()
	if err != nil {
		return 0, err
	}
	manifest, err := built.Manifest()
	if err != nil {
		return 0, err
	}
	return manifest.Layers[0].Size, nil
}

// Write writes the image's archive. It reads every source file twice, and fails if one changes in between.
func (i *Image) Write(w io.Writer) error {
	built, err := i.build()
	if err != nil {
		return err
	}
	if err := writeArchive(w, i.Ref, built); err != nil {
		return fmt.Errorf("image %s: %w", i.Ref, err)
	}
	return nil
}

// Annotations by which containerd and others find an archive's reference.
const (
	annotationContainerdName = "io.containerd.image.name"
	annotationRefName        = "org.opencontainers.image.ref.name"
)

// build returns the image with its digests.
func (i *Image) build() (v1.Image, error) {
	if i.Ref == "" {
		return nil, errors.New("image: no reference: set Ref")
	}
	layer, err := newTarLayer(i.Files)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	created := v1.Time{Time: epoch()}
	base, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Created:      created,
		Config:       v1.Config{User: i.User, Entrypoint: i.Entrypoint, Cmd: i.Cmd, Env: i.Env, Labels: i.Labels, WorkingDir: "/"},
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	base = mutate.ConfigMediaType(mutate.MediaType(base, types.OCIManifestSchema1), types.OCIConfigJSON)
	built, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: created}})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", i.Ref, err)
	}
	// Annotations returns the type that it gets.
	return mutate.Annotations(built, i.Labels).(v1.Image), nil
}

// writeArchive writes the layer first, so that a reader of the stream gets it without the rest.
func writeArchive(w io.Writer, ref string, built v1.Image) error {
	manifest, err := built.Manifest()
	if err != nil {
		return err
	}
	digest, err := built.Digest()
	if err != nil {
		return err
	}
	layer := manifest.Layers[0]
	archive := tar.NewWriter(w)
	if err := writeLayer(archive, layer, built); err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content func() ([]byte, error)
	}{
		{blobPath(manifest.Config.Digest), built.RawConfigFile},
		{blobPath(digest), built.RawManifest},
		{"index.json", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
			Add: built, Descriptor: v1.Descriptor{Annotations: map[string]string{annotationContainerdName: ref, annotationRefName: ref}},
		}).RawManifest},
		{"manifest.json", func() ([]byte, error) {
			return json.Marshal(tarball.Manifest{{
				Config: blobPath(manifest.Config.Digest), RepoTags: []string{ref}, Layers: []string{blobPath(layer.Digest)},
			}})
		}},
		{"oci-layout", func() ([]byte, error) { return []byte(`{"imageLayoutVersion":"1.0.0"}`), nil }},
	} {
		content, err := f.content()
		if err != nil {
			return err
		}
		if err := writeFile(archive, f.name, content); err != nil {
			return err
		}
	}
	return archive.Close()
}

func writeLayer(archive *tar.Writer, d v1.Descriptor, built v1.Image) error {
	layer, err := built.LayerByDigest(d.Digest)
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(header(blobPath(d.Digest), tar.TypeReg, 0o644, d.Size)); err != nil {
		return err
	}
	content, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer content.Close()
	digest, _, err := v1.SHA256(io.TeeReader(content, archive))
	if err != nil {
		return err
	}
	if digest != d.Digest {
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

// blobPath returns the path of a blob in the archive.
func blobPath(digest v1.Hash) string { return path.Join("blobs", digest.Algorithm, digest.Hex) }

// epoch is every time in an image, since a real time would change the digest in each build.
func epoch() time.Time { return time.Unix(0, 0).UTC() }
