// Command build builds the project's container images without a container engine, for `make images` and the Dockerfile. It runs
// apt-get and dpkg-deb, and is not part of the product.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/images/image"
	"github.com/ovsdn/ovsdn/images/product"
	"github.com/ovsdn/ovsdn/pkg/version"
)

func main() {
	os.Exit(run()) //nolint:forbidigo // only main exits, and this is one
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	return 0
}

func command() *cobra.Command {
	source := product.Source{Version: version.Get()}
	root := &cobra.Command{
		Use: "build", Short: "Make the container images", Version: version.Get().String(), SilenceUsage: true, SilenceErrors: true,
	}
	f := root.PersistentFlags()
	f.StringVar(&source.Checkout, "checkout", ".", "root of the source tree")
	f.StringVar(&source.BinDir, "bin", "bin", "folder of the programs")
	f.StringVar(&source.Packages.Dir, "packages", debian.DefaultDir, "folder with the downloaded Debian packages")
	root.AddCommand(archives(&source), rootfs(&source), fetch(&source), lock(&source))
	return root
}

// archives prints a line for each image: its file, its reference, its size in MB.
func archives(source *product.Source) *cobra.Command {
	var out, tag string
	cmd := &cobra.Command{
		Use: "archives", Short: "Write all images as OCI archives, with bills of materials, provenance and a kustomize component of their digests", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tag == "" {
				tag = source.Version.Version
			}
			if err := os.MkdirAll(out, 0o755); err != nil {
				return err
			}
			digests := map[product.Name]string{}
			for _, name := range product.All() {
				i, err := source.Image(cmd.Context(), name, tag)
				if err != nil {
					return err
				}
				if digests[name], err = i.Digest(); err != nil {
					return err
				}
				file := filepath.Join(out, string(name)+".tar")
				if err := write(file, i.Write); err != nil {
					return err
				}
				if err := writeStatements(out, source, name, i, digests[name]); err != nil {
					return err
				}
				size, err := i.Size()
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s  %s  %.1f MB (at most %d)\n", file, i.Ref, float64(size)/1e6, name.MaxSize()/1e6)
			}
			return writeBytes(filepath.Join(out, "kustomization.yaml"), product.Component(digests))
		},
	}
	cmd.Flags().StringVar(&out, "out", "bin/images", "folder of the archives")
	cmd.Flags().StringVar(&tag, "tag", "", "tag of all references (default: the version)")
	return cmd
}

// writeStatements writes the image's bill of materials and its provenance beside the archive.
func writeStatements(out string, source *product.Source, name product.Name, i *image.Image, digest string) error {
	sbom, err := product.SBOM(name, i)
	if err != nil {
		return err
	}
	provenance, err := source.Provenance(name, digest, sbom)
	if err != nil {
		return err
	}
	return errors.Join(
		writeBytes(filepath.Join(out, product.SBOMFile(name)), sbom),
		writeBytes(filepath.Join(out, "ovsdn-"+string(name)+".intoto.json"), append(provenance, '\n')))
}

func writeBytes(path string, content []byte) error {
	return write(path, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// write is atomic.
func write(path string, content func(io.Writer) error) error {
	f, err := os.Create(path + ".next")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := content(f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}

func rootfs(source *product.Source) *cobra.Command {
	return &cobra.Command{
		Use: "rootfs IMAGE DIR", Short: "Write an image's files to a folder, for a Dockerfile", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := source.Files(cmd.Context(), product.Name(args[0]))
			if err != nil {
				return err
			}
			return image.LayOut(files, args[1])
		},
	}
}

func fetch(source *product.Source) *cobra.Command {
	return &cobra.Command{
		Use: "fetch", Short: "Download the Debian packages, so that images can be built offline", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []product.Name{product.Node, product.OVS} {
				l, err := debian.ReadLock(source.LockPath(name))
				if err != nil {
					return err
				}
				if _, err := source.Packages.Fetch(cmd.Context(), l); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func lock(source *product.Source) *cobra.Command {
	return &cobra.Command{
		Use: "lock", Short: "Pin apt's current versions of the packages", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []product.Name{product.Node, product.OVS} {
				path := source.LockPath(name)
				old, err := debian.ReadLock(path)
				if err != nil {
					return err
				}
				now, err := source.Packages.Newest(cmd.Context(), old.Names())
				if err != nil {
					return err
				}
				if err := os.WriteFile(path, []byte(lockHeader+now.String()), 0o644); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), path)
			}
			return nil
		},
	}
}

const lockHeader = "# Packages of this image: NAME VERSION SHA256. `go run ./images/build lock` takes the versions that apt has now.\n"
