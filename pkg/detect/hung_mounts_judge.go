package detect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// foreign reports whether the data of a filesystem come from a server, a host or a daemon that may be gone.
func foreign(fstype string) bool {
	return strings.HasPrefix(fstype, "fuse.") || slices.Contains([]string{
		"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "fuse", "fuseblk", "9p", "virtiofs", "lustre", "glusterfs", "afs", "beegfs",
		"gpfs", "orangefs", "coda", "panfs", "wekafs", "vboxsf", "ncpfs", "daos", "quobyte",
	}, fstype)
}

// foreignFilesystems groups the mounts of such filesystems by superblock.
func foreignFilesystems(mounts []host.Mount, ignore []string) []filesystem {
	byID := mountsByID(mounts)
	var filesystems []filesystem
	for _, f := range filesystemsOf(mounts, func(m host.Mount) bool { return foreign(m.FSType) && !belowTrigger(byID, m) }) {
		// Asked is where the way leads through no other filesystem that may hang, if there is such a place.
		free := slices.DeleteFunc(slices.Clone(f.mounts), func(m host.Mount) bool { return throughForeign(byID, m) })
		if len(free) == 0 {
			free = f.mounts
		}
		f.principal = principalOf(free)
		if !f.ignored(ignore) {
			filesystems = append(filesystems, f)
		}
	}
	return filesystems
}

func throughForeign(byID map[int]host.Mount, m host.Mount) bool {
	return slices.ContainsFunc(above(byID, m), func(a host.Mount) bool { return foreign(a.FSType) && a.Device() != m.Device() })
}

// superblock identifies a filesystem for as long as it is mounted anywhere. The kernel gives the number of one that is gone
// to another.
func superblock(f filesystem) string {
	return f.device + " " + f.principal.FSType + " " + f.principal.Source
}

// above returns the mounts that the path to m leads through, the nearest first, m itself not among them.
func above(byID map[int]host.Mount, m host.Mount) []host.Mount {
	var chain []host.Mount
	seen := map[int]bool{m.ID: true}
	for at := m; ; {
		next, ok := byID[at.Parent]
		if !ok || seen[next.ID] { // the root, or a malformed table that goes round in circles
			return chain
		}
		seen[next.ID] = true
		chain, at = append(chain, next), next
	}
}

// belowTrigger reports whether the way to m leads through an automount's trigger, or could if something expired. A mount
// right on its trigger does not count: the last step of a path is made without triggering anything.
func belowTrigger(byID map[int]host.Mount, m host.Mount) bool {
	return slices.ContainsFunc(above(byID, m), func(a host.Mount) bool { return a.FSType == "autofs" && a.Point != m.Point })
}

// behind returns the filesystem that fails on the way to another one: nothing is known of the latter then.
func (c *hungMounts) behind(mounts []host.Mount, f filesystem) (host.Mount, bool) {
	chain := above(mountsByID(mounts), f.principal)
	i := slices.IndexFunc(chain, func(a host.Mount) bool { return a.Device() != f.device && c.failed(a.Device()) })
	if i < 0 {
		return host.Mount{}, false
	}
	return chain[i], true
}

// failed reports whether a superblock is known to fail.
func (c *hungMounts) failed(device string) bool {
	for key := range c.past {
		if known, _, _ := strings.Cut(key, " "); known == device {
			return true
		}
	}
	return false
}

func errBehind(front host.Mount) error {
	return fmt.Errorf("the way to it leads through %s, which fails itself", front.Point)
}

// hungFinding words what is wrong. Fatal is what takes the node's own data away; a volume is the trouble of its pods.
func hungFinding(f filesystem, past mountPast, paths host.Paths, mounts []host.Mount, pods []string) finding.Finding {
	since := past.wall.UTC().Format(time.RFC3339)
	told := finding.Finding{
		Check: hungMountsID, Subject: f.subject(), Severity: finding.Warning, Reason: past.fault.reason,
		Message: fmt.Sprintf("%s (%s from %s) %s since %s", f.principal.Point, f.principal.FSType, f.principal.Source, past.fault.text, since),
		Facts: map[string]string{
			"device": f.device, "source": f.principal.Source, "fstype": f.principal.FSType,
			"mountPoints": fmt.Sprint(len(f.mounts)), "since": since, "asked": fmt.Sprint(past.times),
		},
	}
	if past.fault.evidence != "" {
		told.Facts["error"] = past.fault.evidence
		told.Message += ": " + past.fault.evidence
	}
	for _, own := range nodePaths(paths) {
		if f.holds(mounts, own.path) {
			told.Severity = finding.Fatal
			told.Message += "; holds " + own.name
		}
	}
	tellHitPods(&told, pods)
	return told
}
