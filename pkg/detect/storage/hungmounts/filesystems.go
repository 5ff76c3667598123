package hungmounts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// foreignFilesystems groups the mounts of network and FUSE filesystems by superblock.
func foreignFilesystems(mounts []mount.Mount, ignore []string) []filesystem.Filesystem {
	tree := filesystem.NewTree(mounts)
	var filesystems []filesystem.Filesystem
	for _, f := range filesystem.FilesystemsOf(mounts, func(m mount.Mount) bool {
		return filesystem.IsRemote(m.FSType) && !belowTrigger(tree, m)
	}) {
		// The probe uses a mount whose path leads through no other filesystem that may hang, if there is one.
		free := slices.DeleteFunc(slices.Clone(f.Mounts), func(m mount.Mount) bool { return throughForeign(tree, m) })
		if len(free) == 0 {
			free = f.Mounts
		}
		f.Principal = filesystem.PrincipalOf(free)
		if !f.Ignored(ignore) {
			filesystems = append(filesystems, f)
		}
	}
	return filesystems
}

// throughForeign is true of a mount that another one covers: no path leads to it.
func throughForeign(tree *filesystem.Tree, m mount.Mount) bool {
	return tree.Stacked(m) || slices.ContainsFunc(tree.Above(m), func(a mount.Mount) bool {
		return filesystem.IsRemote(a.FSType) && a.Device() != m.Device()
	})
}

// superblock identifies a filesystem while it is mounted anywhere. The kernel reuses the number afterwards.
func superblock(f filesystem.Filesystem) string {
	return f.Device + " " + f.Principal.FSType + " " + f.Principal.Source
}

// belowTrigger reports whether the path to m leads through an automount's trigger, or could if something expired. A
// mount right on its trigger does not count: the last step of a path triggers no mount.
func belowTrigger(tree *filesystem.Tree, m mount.Mount) bool {
	return !tree.Stacked(m) && slices.ContainsFunc(tree.Above(m), func(a mount.Mount) bool {
		return a.FSType == "autofs" && a.Point != m.Point
	})
}

// behind returns the filesystem that fails on the path to another one: the state of the latter is then unknown.
func (c *hungMounts) behind(mounts []mount.Mount, f filesystem.Filesystem) (mount.Mount, bool) {
	chain := filesystem.NewTree(mounts).Above(f.Principal)
	i := slices.IndexFunc(chain, func(a mount.Mount) bool { return a.Device() != f.Device && c.failed(a.Device()) })
	if i < 0 {
		return mount.Mount{}, false
	}
	return chain[i], true
}

// failed reports whether a superblock is known to fail.
func (c *hungMounts) failed(device string) bool {
	for key := range c.failing {
		if known, _, _ := strings.Cut(key, " "); known == device {
			return true
		}
	}
	return false
}

// hungFinding is fatal if the node's own data are on the filesystem; a volume affects its pods alone.
func hungFinding(f filesystem.Filesystem, failure mountFailure, paths host.Paths, mounts []mount.Mount,
	pods []string) finding.Finding {
	since := failure.since.UTC().Format(time.RFC3339)
	hung := finding.Finding{
		Subject: f.Subject(), Severity: finding.Warning, Reason: failure.fault.Reason, Certain: failure.fault.Certain,
		Message: fmt.Sprintf("%s (%s from %s) %s since %s", f.Principal.Point, f.Principal.FSType, f.Principal.Source,
			failure.fault.Text, since),
		Facts: map[string]string{
			"device": f.Device, "source": f.Principal.Source, "fstype": f.Principal.FSType,
			"mountPoints": fmt.Sprint(len(f.Mounts)), "since": since, "asked": fmt.Sprint(failure.times),
		},
	}
	if failure.fault.Evidence != "" {
		hung.Facts["error"] = failure.fault.Evidence
		hung.Message += ": " + failure.fault.Evidence
	}
	for _, own := range filesystem.NodePaths(paths) {
		if f.Holds(mounts, own.Path) {
			hung.Severity = finding.Fatal
			hung.Message += "; holds " + own.Name
		}
	}
	checkkit.AddAffectedPods(&hung, pods)
	return hung
}
