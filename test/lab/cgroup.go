package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// hierarchies returns the mount points of every cgroup hierarchy, v1 and v2.
func hierarchies() ([]mount, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var found []mount
	for _, m := range mounts {
		if m.Type == "cgroup" || m.Type == "cgroup2" {
			found = append(found, m)
		}
	}
	return found, nil
}

// createCgroups creates root, the parent of all pods: kubelet requires that its cgroupRoot exists.
func createCgroups(root string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.Type == "cgroup2" {
			delegate(h.Point)
		}
		dir := filepath.Join(h.Point, root)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// A v1 cpuset starts empty, and no process can be put into an empty one.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := inherit(h.Point, dir, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// PodCgroups returns the existing directories of a pod's own cgroup, one in each hierarchy.
func (l *Lab) PodCgroups(uid string) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	patterns := []string{"kubepods/pod" + uid, "kubepods/*/pod" + uid} // guaranteed pods have no class folder
	if l.state.systemd() {
		slice := "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
		patterns = []string{"kubepods.slice/kubepods" + slice, "kubepods.slice/*/kubepods-*" + slice}
	}
	var found []string
	for _, h := range all {
		for _, pattern := range patterns {
			dirs, err := filepath.Glob(filepath.Join(h.Point, l.Paths.CgroupRoot, pattern))
			if err != nil {
				return nil, err
			}
			found = append(found, dirs...)
		}
	}
	return found, nil
}

func inherit(parent, child, name string) error {
	value, err := os.ReadFile(filepath.Join(parent, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another controller's hierarchy, or the root of v2
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(child, name), value, 0o644)
}

// delegate enables the controllers that the root of v2 can give to its children; if one refuses, the others are still
// enabled.
func delegate(root string) {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, name := range strings.Fields(string(available)) {
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+name), 0o644)
	}
}

// labCgroups returns the cgroups of the lab in dir, in every hierarchy, children first.
func labCgroups(dir string) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, h := range all {
		err := filepath.WalkDir(filepath.Join(h.Point, cgroupRoot(dir)), func(path string, entry fs.DirEntry,
			err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("walk %s: %w", h.Point, err)
		}
	}
	for i, j := 0, len(found)-1; i < j; i, j = i+1, j-1 {
		found[i], found[j] = found[j], found[i]
	}
	return found, nil
}

// thaw lets frozen tasks run again: until then not even SIGKILL reaches them.
func thaw(dir string) error {
	dirs, err := labCgroups(dir)
	if err != nil {
		return err
	}
	var errs []error
	for i := len(dirs) - 1; i >= 0; i-- { // parents first: a child stays frozen below a frozen parent
		for file, value := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
			err := overwrite(filepath.Join(dirs[i], file), value)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// overwrite writes to an existing kernel file.
func overwrite(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

func removeCgroups(dir string) error {
	dirs, err := labCgroups(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
