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

// kernel is Debian's kernel, unpacked.
type kernel struct {
	root    string // of its package
	release string // as in uname -r
	image   string
}

// kernel returns the kernel of this Debian, downloaded once.
func (g Guest) kernel(ctx context.Context) (kernel, error) {
	cache, err := filepath.EvalSymlinks(g.Cache) // an absolute link would lead elsewhere in the guest
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
	out, err := output(ctx, fresh, "apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return kernel{}, err
	}
	_, name, _ := strings.Cut(out, "Depends: ")
	name, _, _ = strings.Cut(name, "\n")
	if _, err := output(ctx, fresh, "apt-get", "download", "-q", strings.TrimSpace(name)); err != nil {
		return kernel{}, err
	}
	packages, _ := filepath.Glob(filepath.Join(fresh, "*.deb"))
	if len(packages) != 1 {
		return kernel{}, fmt.Errorf("the kernel %q is not one package: %q", name, packages)
	}
	if _, err := output(ctx, fresh, "dpkg-deb", "-x", packages[0], "."); err != nil {
		return kernel{}, err
	}
	k, err := findKernel(fresh)
	if err != nil {
		return kernel{}, err
	}
	if _, err := output(ctx, fresh, "depmod", "-b", fresh, k.release); err != nil {
		return kernel{}, err
	}
	if err := errors.Join(os.Remove(packages[0]), os.RemoveAll(root), os.Rename(fresh, root)); err != nil {
		return kernel{}, err
	}
	return findKernel(root)
}

func findKernel(root string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, fmt.Errorf("kernel in %s: %q", root, images)
	}
	return kernel{root: root, release: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-"), image: images[0]}, nil
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
