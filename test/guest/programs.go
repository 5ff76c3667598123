package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// foreignPackages are the Debian packages whose programs run only in the guest: servers that would start and listen on
// a machine where they are installed. They are unpacked, with their dependencies that this machine lacks.
var foreignPackages = [...]string{
	"samba",      // an SMB server to be stopped
	"open-iscsi", // the part of the iSCSI initiator outside the kernel
}

// programs returns the directory below which those packages are, downloaded once.
func (g Guest) programs(ctx context.Context) (string, error) {
	cache, err := g.cache()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "guest-programs")
	list := strings.Join(foreignPackages[:], " ")
	if have, err := os.ReadFile(filepath.Join(root, "list")); err == nil && string(have) == list {
		return root, nil
	}
	fresh := root + ".fresh"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(filepath.Join(fresh, "partial"), 0o755)); err != nil {
		return "", err
	}
	args := append([]string{"install", "--download-only", "--yes", "--quiet", "--no-install-recommends", "-o",
		"Debug::NoLocking=1", "-o", "Dir::Cache::archives=" + fresh}, foreignPackages[:]...)
	if _, err := output(ctx, fresh, "apt-get", args...); err != nil {
		return "", err
	}
	packages, err := filepath.Glob(filepath.Join(fresh, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, file := range packages {
		if _, err := output(ctx, fresh, "dpkg-deb", "-x", file, "."); err != nil {
			return "", err
		}
		if err := os.Remove(file); err != nil {
			return "", err
		}
	}
	return root, errors.Join(os.WriteFile(filepath.Join(fresh, "list"), []byte(list), 0o644), os.RemoveAll(root),
		os.Rename(fresh, root))
}
