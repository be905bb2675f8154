package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/images/product"
	"github.com/ovsdn/ovsdn/test/lab/components"
)

// productImages are those that the lab installs.
func (s *state) productImages() []product.Name {
	if s.Shape.Switch == ImageSwitch {
		return product.All()
	}
	return []product.Name{product.Controller, product.Node}
}

// overlay is the folder of deploy that the lab installs.
func (s *state) overlay() string {
	if s.Shape.Switch == ImageSwitch {
		return "overlays/ovs"
	}
	return "."
}

// noAgentLabel on a Node excludes it from the agents' DaemonSet.
const noAgentLabel = "lab.ovsdn.io/no-agent"

func (l *Lab) productImages(progress func(string, ...any)) *components.ProductImages {
	return components.NewProductImages(components.Options{SourceDir: l.state.Checkout, Progress: progress}, l.state.BinDir, l.productImageDir())
}

// BinDir is where the product's programs are, on the host.
func (l *Lab) BinDir() string { return l.state.BinDir }

func (l *Lab) productImageDir() string { return l.path("product") }

// InstallDir has the kustomization that Install applies.
func (l *Lab) InstallDir() string { return l.path("install") }

// tagProduct finds out what the images of the programs are called, and notes where the manifests are.
func (u *up) tagProduct() error {
	if err := os.MkdirAll(u.productImageDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder of the product's images: %w", err)
	}
	images := u.productImages(u.options.Progress)
	u.state.Tags = map[product.Name]string{}
	u.state.Manifests = filepath.Join(u.state.Checkout, "deploy", u.state.overlay())
	for _, name := range u.state.productImages() {
		tag, err := images.Tag(name)
		if err != nil {
			return err
		}
		u.state.Tags[name] = tag
	}
	return nil
}

// makeProductImages needs the tags.
func (u *up) makeProductImages(ctx context.Context) error {
	images := u.productImages(u.options.Progress)
	group, ctx := errgroup.WithContext(ctx)
	for name, tag := range u.state.Tags {
		group.Go(func() error { return images.Make(ctx, name, tag) })
	}
	return group.Wait()
}

// loadProduct imports the product's images into a node, as far as it lacks them.
func (l *Lab) loadProduct(ctx context.Context, node string) error {
	if len(l.state.Tags) == 0 {
		return nil
	}
	have, stderr, err := l.Exec(ctx, node, ctr("images", "list", "--quiet")...)
	if err != nil {
		return fmt.Errorf("list the images of %s: %w: %s", node, err, stderr)
	}
	images := l.productImages(nil)
	for name, tag := range l.state.Tags {
		if slices.Contains(strings.Fields(have), name.Ref(tag)) {
			continue
		}
		if _, stderr, err := l.Exec(ctx, node, importCommand(images.Archive(name, tag))...); err != nil {
			return fmt.Errorf("load %s into %s: %w: %s", name.Ref(tag), node, err, stderr)
		}
	}
	return nil
}

// removeOldImages removes images of earlier tags from a node. A container that runs from one continues. Images of Open vSwitch stay, since
// its pods stay and start their containers from them.
func (l *Lab) removeOldImages(ctx context.Context, node string) error {
	have, stderr, err := l.Exec(ctx, node, ctr("images", "list", "--quiet")...)
	if err != nil {
		return fmt.Errorf("list the images of %s: %w: %s", node, err, stderr)
	}
	for _, ref := range strings.Fields(have) {
		for name, tag := range l.state.Tags {
			if name == product.OVS || !strings.HasPrefix(ref, name.Ref("lab-")) || ref == name.Ref(tag) {
				continue
			}
			if _, stderr, err := l.Exec(ctx, node, ctr("images", "remove", ref)...); err != nil {
				return fmt.Errorf("remove the image %s from %s: %w: %s", ref, node, err, stderr)
			}
		}
	}
	return nil
}

// Install applies the folder deploy of the images' checkout with a user's kustomization of the cluster's settings: the address of the API
// server, the networks, the images' tags. The cluster's DNS starts when a node is ready.
func (l *Lab) Install(ctx context.Context) error {
	if err := l.writeKustomization(); err != nil {
		return err
	}
	if _, stderr, err := l.Kubectl(ctx, "apply", "-k", l.InstallDir()); err != nil {
		return fmt.Errorf("install ovsdn: %w: %s", err, strings.TrimSpace(stderr))
	}
	return l.startDNS(ctx)
}

// Uninstall deletes all objects of Install, and returns when they are deleted. Agents restore their nodes before they end. The pod of the cluster's
// DNS is deleted first, which docs/uninstall.md requires of all pods.
func (l *Lab) Uninstall(ctx context.Context) error {
	if err := l.stopDNS(ctx); err != nil {
		return err
	}
	if _, stderr, err := l.Kubectl(ctx, "delete", "-k", l.InstallDir(), "--ignore-not-found"); err != nil {
		return fmt.Errorf("uninstall ovsdn: %w: %s", err, strings.TrimSpace(stderr))
	}
	return nil
}

func (l *Lab) writeKustomization() error {
	dir := l.InstallDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the installation: %w", err)
	}
	// Kustomize takes no absolute path.
	base, err := filepath.Rel(dir, l.state.Manifests)
	if err != nil {
		return fmt.Errorf("find the manifests: %w", err)
	}
	return writeFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization(base, &l.state)))
}

func kustomization(base string, s *state) string {
	var images strings.Builder
	for _, name := range s.productImages() {
		fmt.Fprintf(&images, "- {name: %s, newTag: %s}\n", name.Repository(), s.Tags[name])
	}
	return fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- %s
configMapGenerator:
- name: ovsdn-network
  namespace: ovsdn-system
  behavior: merge
  options: {immutable: true}
  literals:
  - kube-apiserver=https://%s:%d
  - mode=%s
  - cluster-network=%s
  - host-bits=%d
  - service-network=%s
  - service-proxy=%s
  - datapath=%s
replicas:
- {name: %s, count: %d}
images:
%s# To stop an agent, label its node.
patches:
- target: {kind: DaemonSet, name: %s}
  patch: |-
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: %[13]s}
    spec:
      template:
        spec:
          affinity:
            nodeAffinity:
              requiredDuringSchedulingIgnoredDuringExecution:
                nodeSelectorTerms:
                - matchExpressions:
                  - {key: %s, operator: DoesNotExist}
%s`, base, controlPlaneAddr(), apiPort, s.Shape.Mode, s.Shape.ClusterNetwork, s.Shape.HostBits, s.Shape.ServiceNetwork, s.Shape.ServiceProxy,
		s.Shape.Datapath, controllerUnit, s.controllers(), images.String(), agentUnit, noAgentLabel, s.unidlePatch())
}

// unidlePatch returns the patch that makes agents hold packets to idled services, if the lab has that.
func (s *state) unidlePatch() string {
	if !s.Shape.Unidle {
		return ""
	}
	return fmt.Sprintf(`- target: {kind: DaemonSet, name: %s}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --unidle}
`, agentUnit)
}

// Build is a version of the product: its programs, and the source tree with its manifests and what else its images are made from. What is
// not given is the lab's own.
type Build struct{ BinDir, Checkout string }

// Reload installs a build, as it is now, in the running lab, and returns when all nodes run it. An upgrade is that, and a way back.
func (l *Lab) Reload(ctx context.Context, b Build, progress func(format string, args ...any)) error {
	if err := l.reloads(); err != nil {
		return err
	}
	return l.withLock(ctx, progress, func() error {
		u := &up{Lab: l, options: Options{Progress: progress}, began: time.Now()}
		if err := u.step("images", func() error { return u.remake(ctx, b) }); err != nil {
			return err
		}
		if err := u.step("images loaded", func() error { return u.loadProducts(ctx) }); err != nil {
			return err
		}
		if err := u.step("rollout", func() error { return errors.Join(u.Install(ctx), u.WaitRollout(ctx)) }); err != nil {
			return err
		}
		for _, node := range l.Nodes() {
			if err := l.removeOldImages(ctx, node); err != nil {
				return err
			}
		}
		return nil
	})
}

// Preload makes the images of a build and loads them into the nodes, so that a Reload of that build only replaces pods. It must come next: the archives of the present
// images, which further nodes need, are deleted.
func (l *Lab) Preload(ctx context.Context, b Build, progress func(format string, args ...any)) error {
	if err := l.reloads(); err != nil {
		return err
	}
	return l.withLock(ctx, progress, func() (err error) {
		u := &up{Lab: l, options: Options{Progress: progress}, began: time.Now()}
		tags, manifests := u.state.Tags, u.state.Manifests
		defer func() {
			u.state.Tags, u.state.Manifests = tags, manifests
			err = errors.Join(err, u.write())
		}()
		if err := u.step("images", func() error { return u.remake(ctx, b) }); err != nil {
			return err
		}
		return u.step("images loaded", func() error { return u.loadProducts(ctx) })
	})
}

// reloads returns an error if the lab has no images of the product.
func (l *Lab) reloads() error {
	if l.state.Shape.Install == Processes {
		return errors.New("this lab was started with --install=processes, and can't be reloaded: it uses a new build when their processes start again")
	}
	return nil
}

// remake makes images of a build, and notes them as the lab's.
func (u *up) remake(ctx context.Context, b Build) error {
	own := Build{u.state.BinDir, u.state.Checkout}
	u.state.BinDir, u.state.Checkout = cmp.Or(b.BinDir, own.BinDir), cmp.Or(b.Checkout, own.Checkout)
	err := u.tagProduct()
	if err == nil {
		err = u.makeProductImages(ctx)
	}
	u.state.BinDir, u.state.Checkout = own.BinDir, own.Checkout
	if err != nil {
		return err
	}
	return u.write()
}

func (l *Lab) loadProducts(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range l.Nodes() {
		group.Go(func() error { return l.loadProduct(ctx, node) })
	}
	return group.Wait()
}

// WaitRollout returns when the agents and controllers are those that were last installed, and are ready. An Open vSwitch from the image is
// replaced when its pod is deleted, and not before.
func (l *Lab) WaitRollout(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("timeout after %v", patience))
	defer cancel()
	for _, workload := range []string{"daemonset/" + agentUnit, "deployment/" + controllerUnit} {
		if _, stderr, err := l.Kubectl(ctx, "--namespace", productNamespace, "rollout", "status", workload); err != nil {
			return fmt.Errorf("rollout of %s: %w: %s", workload, err, stderr)
		}
	}
	return nil
}
