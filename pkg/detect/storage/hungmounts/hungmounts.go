// Package hungmounts finds network and FUSE filesystems that do not answer.
package hungmounts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// hung-mounts reads the mount table and probes each filesystem whose data come from a server or a daemon, once for each
// superblock, by statfs(2), fstat(2) and open(2) of its root directory in a child process:
//
//	61 27 0:51 / /data rw,relatime - nfs4 10.0.0.5:/export rw,vers=4.2,hard,timeo=600,…
//	62 27 0:52 / /s3 rw,nosuid,nodev - fuse.s3fs s3fs rw,user_id=0,group_id=0
//
// nfs(5), https://docs.kernel.org/filesystems/fuse.html, https://docs.kernel.org/filesystems/autofs.html
//
// A dead NFS server (hard mount), a stopped FUSE daemon or a lost Ceph cluster never answers: every access to a path
// there waits in the kernel. A FUSE mount whose daemon has died returns ENOTCONN for everything, and a lost export
// ESTALE: neither recovers by itself, so one answer is enough. The death of a daemon does not change the mount table,
// but the end of its container does: the container's root filesystem is unmounted.
//
// The agent itself does not access such paths. It kills a child that hangs; NFS then releases it, and the mount is
// probed again after one, two, four, five minutes, or at once when the kernel logs a line about a server. FUSE does not
// release it: the child stays until the server answers or the connection is aborted, and there is never a second child
// for the same superblock. All mounts that hang in one run hang in one child, and at most two such children are left,
// so that other checks can still probe. The check never accesses the trigger of an automount (autofs) or a path below
// one, because that mounts expired filesystems again; it probes a mount right on its trigger (systemd's) without
// triggering anything. A refusal (EACCES, EPERM) is an answer.

// Settings adjust hung-mounts.
type Settings struct {
	Patience time.Duration `yaml:"patience"` // how long to wait for the answer of a filesystem
	Ignore   []string      `yaml:"ignore"`   // mount points of filesystems that are never accessed
}

// DefaultSettings returns the default settings: exporters commonly wait five seconds for a mount.
func DefaultSettings() Settings {
	return Settings{Patience: 5 * time.Second}
}

const hungMountsEvery = time.Minute

const (
	reasonMountHung   = "MountHung"
	reasonMountBroken = "MountBroken"
)

// New finds network and FUSE filesystems that no longer answer.
func New(s Settings) detect.Check {
	c := &hungMounts{settings: s, hung: checkkit.HungProbes{}, failing: map[string]mountFailure{}}
	return detect.Check{
		ID: "hung-mounts", Domain: "storage",
		Summary: "a network or FUSE filesystem does not answer; whatever accesses it hangs",
		Advice: "Bring the server or the daemon back: the mount then continues. Check the pod of the volume's " +
			"driver, `dmesg`, and whether the server is reachable. If the daemon of a FUSE mount is gone, run `echo " +
			"1 > /sys/fs/fuse/connections/N/abort` (N is the second part of the device) and unmount it; if the " +
			"server of an NFS mount will not come back, run `umount -f`. Do not run `df` or `ls` there: it will " +
			"hang too.",
		Doc:        hungMountsDoc(),
		UsesPartly: []host.Setting{host.KubeletRoot, host.ContainerdRoot, host.ContainerdState, host.PodLogs},
		Condition:  detect.StorageProblem(),
		Every:      hungMountsEvery, Deadline: 30 * time.Second,
		Wakes: []detect.Wake{
			checkkit.KernelWake(), checkkit.LogWake("nfs: server "), checkkit.LogWake("ceph: "),
			checkkit.LogWake("CIFS: "), {Source: detect.WakeMounts},
		},
		WakeGap: 10 * time.Second, // every pod that starts or ends changes the mount table, and each run takes a child
		Policy:  finding.Policy{Raise: finding.Hold{Runs: 2}},
		Run:     c.run,
	}
}

func hungMountsDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{"/proc/1/mountinfo", "statfs(2), fstat(2) and open(2) of the root of each network and FUSE " +
			"filesystem, in a child process"},
		Why: "A pod whose volume hangs can neither work nor be killed, and its deletion hangs as well; kubelet's " +
			"statistics of the volume, backups and every df on the node wait in the kernel too.",
		Faults: []detect.Fault{
			{Reason: reasonMountHung, Severity: finding.Fatal, When: "no answer within 5 seconds in two runs; fatal " +
				"where the node's own data lie on it, else a warning"},
			{Reason: reasonMountBroken, Severity: finding.Fatal, When: "every access is refused: the FUSE daemon is " +
				"gone (ENOTCONN) or the export is lost (ESTALE), which one run proves; in two runs EIO, or that the " +
				"server is unreachable; same severities"},
		},
		FalseAlarms: "A server that is only slow is believed to hang after a minute. Automounts that lie below their " +
			"trigger (/net, /misc) are not checked: an access would mount them. Mounts that only exist inside a " +
			"container are not checked either.",
	}
}

// hungMounts is kept between runs.
type hungMounts struct {
	settings Settings

	hung    checkkit.HungProbes
	failing map[string]mountFailure // by superblock, only those that do not answer
	lastRun time.Duration           // uptime
}

// mountFailure is the state of a filesystem that does not answer.
type mountFailure struct {
	since time.Time // of the first failed probe, by the wall clock, for people
	fault filesystem.Fault
	next  time.Duration // uptime of the next probe on the timer
	times int           // number of failed probes
}

func (c *hungMounts) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	mounts, cut, err := mount.Known(mount.Recent(h))
	if err != nil {
		return nil, err
	}
	filesystems := foreignFilesystems(mounts, c.settings.Ignore)
	if len(filesystems) == 0 && cut != nil {
		return nil, cut
	}
	if len(filesystems) == 0 {
		c.failing = map[string]mountFailure{}
		return nil, finding.NoneLeft("no network or FUSE filesystem is mounted")
	}
	var results checkkit.Results
	c.probe(ctx, h, mounts, filesystems, &results)
	for _, f := range filesystems {
		failure, failed := c.failing[superblock(f)]
		if !failed {
			continue
		}
		if front, behind := c.behind(mounts, f); behind {
			results.Doubt(f.Subject(), fmt.Errorf("its path leads through %s, which fails itself", front.Point))
			continue
		}
		results.Settle(hungFinding(f, failure, h.Paths, mounts, filesystem.AffectedPods(ctx, h, mounts, f)))
	}
	return results.DoneWithMounts(h, cut)
}

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
