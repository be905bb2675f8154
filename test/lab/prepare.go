package lab

import (
	"cmp"
	"context"

	"github.com/ovsdn/ovsdn/test/lab/components"
)

// Prepare builds what labs need beside the product's programs, and returns the folder that has it: afterwards no lab and no test compiles
// Kubernetes. It uses the options' folders and progress. What is cached is not built again; a build by another process is waited for.
func Prepare(ctx context.Context, o Options) (cacheDir string, err error) {
	o.setDefaults()
	_, source, err := findBinDir(o.BinDir)
	if err != nil {
		return "", err
	}
	_, err = components.Build(ctx, components.Options{SourceDir: source, CacheDir: o.CacheDir, Progress: o.Progress})
	return cmp.Or(o.CacheDir, components.DefaultCacheDir), err
}
