package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// maxImports limits the files of one containerd's configuration.
const maxImports = 100

// containerdFiles reads the configuration and its imports, as containerd 2 merges them: in the order of their names in
// the file, and later files win. `containerd config default` imports /etc/containerd/conf.d/*.toml.
//
// https://github.com/containerd/containerd/blob/main/docs/man/containerd-config.toml.5.md
func (d *discoverer) containerdFiles(s *containerdSettings, name string, given bool) {
	pending := []string{name}
	for i := 0; i < len(pending); i++ {
		if i == maxImports {
			d.unreadContainerd(s, fmt.Errorf("containerd configuration %s: more than %d files", name, maxImports))
			return
		}
		for _, imported := range d.containerdFile(s, pending[i], given && i == 0) {
			if !slices.Contains(pending, imported) {
				pending = append(pending, imported)
			}
		}
	}
}

// containerdFile applies one file and returns the names of those that it imports.
func (d *discoverer) containerdFile(s *containerdSettings, name string, given bool) []string {
	data, err := d.host.Files.ReadOwned(name)
	if errors.Is(err, fs.ErrNotExist) && !given {
		return nil // containerd has defaults
	}
	if err != nil {
		d.unreadContainerd(s, fmt.Errorf("containerd configuration: %w", err))
		return nil
	}
	values, err := host.ParseTOMLStrings(data)
	if err != nil {
		d.unreadContainerd(s, fmt.Errorf("containerd configuration %s: %w", name, err))
		return nil
	}
	d.note("containerd configuration: %s", name)
	first := func(target *string, key string) {
		if len(values[key]) == 1 {
			setIf(target, values[key][0])
		}
	}
	first(&s.address, "grpc.address")
	first(&s.address, "plugins.io.containerd.server.v1.grpc.address") // version 4 of the file
	first(&s.root, "root")
	first(&s.state, "state")
	// Versions 1, 2 and 3 of the file name the CRI plugin differently.
	for _, plugin := range []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"} {
		prefix := "plugins." + plugin + ".cni."
		first(&s.confDir, prefix+"conf_dir")
		dirs := slices.Concat(values[prefix+"bin_dirs"], values[prefix+"bin_dir"])
		if dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !filepath.IsAbs(dir) }); len(dirs) > 0 {
			s.binDirs = dirs
		}
	}
	return d.containerdImports(s, name, values["imports"])
}

// unreadContainerd notes a file that could not be read.
func (d *discoverer) unreadContainerd(s *containerdSettings, err error) {
	d.note("%v", err)
	s.unread = errors.Join(s.unread, err)
}

// containerdImports returns the files that match the patterns: relative to the folder of the importing file, with * in
// their last part.
func (d *discoverer) containerdImports(s *containerdSettings, name string, patterns []string) []string {
	var found []string
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(name), pattern)
		}
		dir, last := filepath.Split(filepath.Clean(pattern))
		switch {
		case strings.Contains(dir, "*"):
			d.unreadContainerd(s, fmt.Errorf("containerd configuration %s: not read: %s", name, hosterr.Clip(pattern)))
		case strings.Contains(last, "*"):
			names, _ := d.host.Files.List(dir) // a missing folder has no files
			slices.Sort(names)
			for _, entry := range names {
				if fits, err := filepath.Match(last, entry); err == nil && fits {
					found = append(found, filepath.Join(dir, entry))
				}
			}
		default:
			found = append(found, filepath.Join(dir, last))
		}
	}
	return found
}
