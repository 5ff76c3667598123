package inspect

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// netnsMount is a bind mount of a network namespace on an empty file, which keeps the namespace alive. A file with
// nothing mounted on it, as a crash or an unmount in another namespace leaves it, is one with inode 0.
type netnsMount struct {
	path   string
	inode  uint64 // of the namespace
	mounts int    // how often it is mounted there
	also   string // another point at which the same namespace is mounted; empty where there is none
	file   host.FileStat
}

// readNetnsMounts finds them in the directories of the runtime: the mounts in the mount table, the files by listing.
func (s *Scan) readNetnsMounts() ([]netnsMount, error) {
	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}
	found := make(map[string]*netnsMount)
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
			p = &netnsMount{path: m.Point}
			found[m.Point] = p
		}
		p.inode, p.mounts = inode, p.mounts+1 // the last one in the table is on top
	}
	for _, dir := range s.Host.Paths.NetnsDirs {
		if err := s.addFiles(found, dir); err != nil {
			return nil, err
		}
	}
	netnsMounts := make([]netnsMount, 0, len(found))
	for _, p := range found {
		if at := slices.IndexFunc(points[p.inode], func(point string) bool { return point != p.path }); at >= 0 {
			p.also = points[p.inode][at]
		}
		netnsMounts = append(netnsMounts, *p)
	}
	slices.SortFunc(netnsMounts, func(a, b netnsMount) int { return strings.Compare(a.path, b.path) })
	return netnsMounts, nil
}

// addFiles adds the files of a directory that have nothing mounted on them.
func (s *Scan) addFiles(found map[string]*netnsMount, dir string) error {
	entries, _, err := s.Host.Files.Entries(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
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
		found[name] = &netnsMount{path: name, file: stat}
	}
	return nil
}

func netnsSpec() KindSpec {
	return KindSpec{
		Kind: Netns, List: listNetns, GoneFrom: ofSandbox,
		What: "a network namespace that a CRI runtime keeps mounted",
		Harm: "keeps its interfaces, addresses and sockets alive",
	}
}

// listNetns lists the network namespaces that a runtime mounted. The CNI cache or the runtime names the pod: see
// attachOwners.
func listNetns(_ context.Context, scan *Scan) ([]Object, error) {
	netnsMounts, err := scan.netnsMounts()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(netnsMounts))
	for _, p := range netnsMounts {
		o := Object{Kind: Netns, ID: p.path, Foreign: foreignNetns(p)}
		if p.inode != 0 {
			o.Identity = Identity{"inode": strconv.FormatUint(p.inode, 10)}
			o.Facts = facts("mounts", strconv.Itoa(p.mounts), "alsoAt", p.also)
		} else {
			o.Identity = Identity{"device": hosterr.Device(p.file.Device), "inode": strconv.FormatUint(p.file.Inode,
				10)}
			o.Facts = map[string]string{"mounts": "0", "state": emptyFile}
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// emptyFile is the state of a file that no longer has a namespace mounted on it.
const emptyFile = "empty file"

// foreignNetns returns why a mount does not belong to a CRI runtime: those are named cni-<UUID>, and their files are
// empty.
func foreignNetns(p netnsMount) string {
	uuid, ok := strings.CutPrefix(path.Base(p.path), "cni-")
	switch {
	case !ok || len(uuid) != 36 || !host.IsPodUID(strings.ToLower(uuid)):
		return "not created by a CRI runtime: its name is not cni-<UUID>"
	case p.inode == 0 && p.file.Size != 0:
		return "not a network namespace: a file with content"
	}
	return ""
}

// inNetnsDirs reports whether a path is directly in one of the runtime's directories for network namespaces.
func inNetnsDirs(scan *Scan, name string) bool {
	return slices.Contains(scan.Host.Paths.NetnsDirs, path.Dir(netnsPath(scan, name)))
}

// netnsPath returns a path as the mount table shows it: runtimes use /var/run, which is a link to /run.
func netnsPath(scan *Scan, name string) string {
	dir := path.Dir(name)
	scan.mu.Lock()
	defer scan.mu.Unlock()
	resolved, ok := scan.dirs[dir]
	if !ok {
		resolved = resolve(scan.Host.Files, dir)
		scan.dirs[dir] = resolved
	}
	return path.Join(resolved, path.Base(name))
}
