package hostscan

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// NetnsMount is a bind mount of a network namespace on an empty file, which keeps the namespace alive. A file without a
// mount, left by a crash or an unmount in another namespace, has inode 0.
type NetnsMount struct {
	Path   string
	Inode  uint64 // of the namespace
	Mounts int    // how often it is mounted there
	Also   string // another mount point of the same namespace, or ""
	File   host.FileStat
}

// readNetnsMounts finds them in the directories of the runtime: the mounts in the mount table, the files by listing.
func (s *Scan) readNetnsMounts() ([]NetnsMount, error) {
	mounts, err := s.Mounts()
	if err != nil {
		return nil, err
	}
	found := make(map[string]*NetnsMount)
	points := make(map[uint64][]string) // of each namespace, wherever it is mounted
	for _, m := range mounts {
		if m.FSType != "nsfs" {
			continue
		}
		inode, err := holders.ParseNamespace(m.Root, "net")
		if err != nil {
			continue // a namespace of another type
		}
		points[inode] = append(points[inode], m.Point)
		if !slices.Contains(s.Host.Paths.NetnsDirs, path.Dir(m.Point)) {
			continue
		}
		p := found[m.Point]
		if p == nil {
			p = &NetnsMount{Path: m.Point}
			found[m.Point] = p
		}
		p.Inode, p.Mounts = inode, p.Mounts+1 // the last one in the table is on top
	}
	for _, dir := range s.Host.Paths.NetnsDirs {
		if err := s.addFiles(found, dir); err != nil {
			return nil, err
		}
	}
	netnsMounts := make([]NetnsMount, 0, len(found))
	for _, p := range found {
		if at := slices.IndexFunc(points[p.Inode], func(point string) bool { return point != p.Path }); at >= 0 {
			p.Also = points[p.Inode][at]
		}
		netnsMounts = append(netnsMounts, *p)
	}
	slices.SortFunc(netnsMounts, func(a, b NetnsMount) int { return strings.Compare(a.Path, b.Path) })
	return netnsMounts, nil
}

// addFiles adds the files of a directory without a mount on them.
func (s *Scan) addFiles(found map[string]*NetnsMount, dir string) error {
	entries, _, err := s.Host.Files.Entries(dir)
	if err != nil {
		return hosterr.Ignore(err, fs.ErrNotExist)
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name)
		if found[name] != nil || !entry.IsFile() {
			continue
		}
		stat, err := s.Host.Files.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found[name] = &NetnsMount{Path: name, File: stat}
	}
	return nil
}

// NetnsPath returns a path as the mount table shows it: runtimes use /var/run, which is a link to /run.
func (s *Scan) NetnsPath(name string) string {
	dir := path.Dir(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	resolved, ok := s.dirs[dir]
	if !ok {
		resolved = Resolve(s.Host.Files, dir)
		s.dirs[dir] = resolved
	}
	return path.Join(resolved, path.Base(name))
}
