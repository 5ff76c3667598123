package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kernel is Debian's kernel, unpacked, with the files to build modules.
type kernel struct {
	root    string // of its packages
	release string // the version of uname -r
	image   string
	headers string
}

// cache returns the folder kept between runs, and creates it in a new checkout.
func (g Guest) cache() (string, error) {
	if err := os.MkdirAll(g.Cache, 0o755); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(g.Cache) // an absolute link would lead elsewhere in the guest
}

// kernel returns the kernel of this Debian, downloaded once.
func (g Guest) kernel(ctx context.Context) (kernel, error) {
	cache, err := g.cache()
	if err != nil {
		return kernel{}, err
	}
	root := filepath.Join(cache, "guest-kernel")
	if k, err := findKernel(root); err == nil {
		return k, nil
	}
	fresh := root + ".fresh"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o755)); err != nil {
		return kernel{}, err
	}
	packages, err := kernelPackages(ctx)
	if err != nil {
		return kernel{}, err
	}
	if _, err := output(ctx, fresh, "apt-get", append([]string{"download", "-q"}, packages...)...); err != nil {
		return kernel{}, err
	}
	files, _ := filepath.Glob(filepath.Join(fresh, "*.deb"))
	for _, file := range files {
		if _, err := output(ctx, fresh, "dpkg-deb", "-x", file, "."); err != nil {
			return kernel{}, err
		}
		if err := os.Remove(file); err != nil {
			return kernel{}, err
		}
	}
	k, err := findKernel(fresh)
	if err != nil {
		return kernel{}, err
	}
	if _, err := output(ctx, fresh, "depmod", "-b", fresh, k.release); err != nil {
		return kernel{}, err
	}
	if err := errors.Join(os.RemoveAll(root), os.Rename(fresh, root)); err != nil {
		return kernel{}, err
	}
	return findKernel(root)
}

// kernelPackages returns the names of the packages: the kernel, its headers and the programs to build modules.
func kernelPackages(ctx context.Context) ([]string, error) {
	images, err := depends(ctx, "linux-image-amd64")
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("the kernel is not one package: %q", images)
	}
	headers := strings.Replace(images[0], "linux-image-", "linux-headers-", 1)
	packages := []string{images[0], headers}
	needed, err := depends(ctx, headers)
	for _, name := range needed {
		// without the compiler, which is installed
		if strings.HasPrefix(name, "linux-headers-") || strings.HasPrefix(name, "linux-kbuild-") {
			packages = append(packages, name)
		}
	}
	return packages, err
}

func depends(ctx context.Context, name string) (names []string, err error) {
	out, err := output(ctx, "/", "apt-cache", "depends", name)
	for line := range strings.Lines(out) {
		if need, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			names = append(names, need)
		}
	}
	return names, err
}

func findKernel(root string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, fmt.Errorf("kernel in %s: %q", root, images)
	}
	k := kernel{root: root, release: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-"), image: images[0]}
	k.headers = filepath.Join(root, "usr/src/linux-headers-"+k.release)
	_, err = os.Stat(filepath.Join(k.headers, "Module.symvers"))
	return k, err
}

// build builds modules from the sources in a directory, without changing them.
func (k kernel) build(ctx context.Context, sources, to string) error {
	if err := os.CopyFS(to, os.DirFS(sources)); err != nil {
		return err
	}
	// their own Makefile includes this one by its absolute path on Debian
	common := strings.TrimSuffix(k.headers, "-amd64") + "-common"
	_, err := output(ctx, to, "make", "-s", "-C", k.headers, "-f", filepath.Join(common, "Makefile"), "M="+to,
		"modules")
	return err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
