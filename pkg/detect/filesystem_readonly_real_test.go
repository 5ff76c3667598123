package detect

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

// realNode looks with one check at the machine that the test runs on. Only filesystems below its directory count: others
// may fail there on their own account.
type realNode struct {
	t     *testing.T
	dir   string
	host  *host.Host
	check Check
	later time.Duration // how far the agent's clock is ahead of the real one
}

func newRealNode(t *testing.T, check Check) *realNode {
	t.Helper()
	n := &realNode{t: t, dir: t.TempDir(), check: check}
	n.host = &host.Host{
		Prober: host.NewProber(),
		Clock: func() finding.Stamp {
			now := host.Now()
			now.Up, now.Wall = now.Up+n.later, now.Wall.Add(n.later)
			return now
		},
		Paths: host.Paths{InitPID: os.Getpid(), KubeletRoot: filepath.Join(n.dir, "kubelet"), CgroupRoot: "/"},
	}
	return n
}

func (n *realNode) path(name string) string { return filepath.Join(n.dir, name) }

// sees fails unless the look shows just this: subject below the directory, severity, reason.
func (n *realNode) sees(want ...[3]string) []finding.Finding {
	n.t.Helper()
	n.later += time.Second // looks follow each other at some distance, as they do in the agent
	findings, err := n.check.Run(n.t.Context(), n.host)
	partial, isPartial := errors.AsType[*finding.PartialError](err)
	if err != nil && !isPartial {
		n.t.Fatal(err)
	}
	if isPartial {
		for subject, why := range partial.Subjects {
			if host.Below(subject.Name, n.dir) {
				n.t.Errorf("%s: %v", subject, why)
			}
		}
	}
	findings = slices.DeleteFunc(findings, func(f finding.Finding) bool { return !host.Below(f.Subject.Name, n.dir) })
	var got [][3]string
	for _, f := range findings {
		name, _ := filepath.Rel(n.dir, f.Subject.Name)
		got = append(got, [3]string{name, string(f.Severity), f.Reason})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("(-want +got):\n%s%+v", diff, findings)
	}
	return findings
}

func TestRealExt4Error(t *testing.T) {
	ext4, n := hosttest.NewLoopFS(t, "ext4"), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	disk := n.path("disk")
	const uid = "0d2f1a64-8f1e-4b5e-9b5a-0123456789ab"
	ext4.Mount(disk, "errors=remount-ro")
	ext4.Bind(disk, n.path("bind"), true)
	ext4.Bind(disk, n.path("kubelet/pods/"+uid+"/volume-subpaths/a"), true)
	n.sees()

	ext4.TriggerError()
	reason := reasonEmergencyRO
	if !n.superOption(disk, "emergency_ro") {
		reason = reasonRemountedRO // before Linux 6.15
	}
	got := n.sees([3]string{"disk", "fatal", reason})
	if len(got) == 1 && (got[0].Facts["pods"] != uid || got[0].Facts["mountPoints"] != "3") {
		t.Errorf("facts: %v", got[0].Facts)
	}
	if err := os.WriteFile(n.path("disk/x"), nil, 0o600); err == nil {
		t.Error("the filesystem still takes writes")
	}

	ext4.Unmount(n.path("kubelet/pods/" + uid + "/volume-subpaths/a"))
	ext4.Unmount(n.path("bind"))
	ext4.Unmount(disk)
	n.sees()
	ext4.Released()
	ext4.Mount(disk, "errors=remount-ro") // takes writes, but its errors were never looked at
	n.sees([3]string{"disk", "warning", reasonErrors})
	ext4.Unmount(disk)
	ext4.Released()
	ext4.Check()
	ext4.Mount(disk, "errors=remount-ro")
	n.sees()
}

func (n *realNode) superOption(point, option string) bool {
	n.t.Helper()
	mounts, err := n.host.Mounts()
	if err != nil {
		n.t.Fatal(err)
	}
	return slices.ContainsFunc(mounts, func(m host.Mount) bool { return m.Point == point && slices.Contains(m.SuperOptions, option) })
}

func TestRealExt4ErrorsContinue(t *testing.T) {
	ext4, n := hosttest.NewLoopFS(t, "ext4"), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	ext4.Mount(n.path("disk"), "errors=continue")
	ext4.TriggerError()
	n.sees([3]string{"disk", "warning", reasonErrors})
	ext4.Remount(n.path("disk"), "ro") // a person does so: no new fault
	n.sees([3]string{"disk", "warning", reasonErrors})
}

func TestRealExt4Shutdown(t *testing.T) {
	ext4, n := hosttest.NewLoopFS(t, "ext4"), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	ext4.Mount(n.path("kubelet/plugins/driver/globalmount"), "rw")
	ext4.Shutdown(n.path("kubelet/plugins/driver/globalmount"))
	shown := n.superOption(n.path("kubelet/plugins/driver/globalmount"), "shutdown")
	need.Has(t, shown, "Linux 6.15: ext4 shows that it was shut down")
	n.sees([3]string{"kubelet/plugins/driver/globalmount", "warning", reasonShutdown})
}

func TestRealXFSShutdown(t *testing.T) {
	xfs, n := hosttest.NewLoopFS(t, "xfs"), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	xfs.Mount(n.path("disk"), "rw")
	xfs.Bind(n.path("disk"), n.path("bind"), false)
	n.sees()
	xfs.Shutdown(n.path("disk"))
	n.sees([3]string{"disk", "fatal", reasonShutdown})
	xfs.Unmount(n.path("bind"))
	xfs.Unmount(n.path("disk"))
	n.sees()
	xfs.Released()
	xfs.Mount(n.path("disk"), "rw") // replays its log
	n.sees()
}

func TestRealXFSLosesItsDisk(t *testing.T) {
	xfs, n := hosttest.NewLoopFS(t, "xfs"), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	xfs.Mount(n.path("disk"), "rw")
	n.sees()
	xfs.Shrink(0)
	n.sees([3]string{"disk", "fatal", reasonDeviceGone})
}

func TestRealBtrfsForcedReadOnly(t *testing.T) {
	btrfs, n := hosttest.NewLoopFS(t, "btrfs"), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	btrfs.Mount(n.path("disk"), "rw")
	n.sees()
	btrfs.Shrink(1 << 20)
	file, err := os.Create(n.path("disk/x"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Sync(); err == nil {
		t.Fatal("the disk still takes writes")
	}
	n.sees([3]string{"disk", "fatal", reasonRemountedRO})
}

// What a person made read-only is no fault.
func TestRealReadOnlyByDesign(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			fs, n := hosttest.NewLoopFS(t, fstype), newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
			fs.Mount(n.path("disk"), "ro")
			n.sees()
			fs.Remount(n.path("disk"), "rw")
			fs.Bind(n.path("disk"), n.path("bind"), true)
			n.sees()
			fs.Unmount(n.path("bind"))
			fs.Remount(n.path("disk"), "ro")
			n.sees()
		})
	}
}

// Filesystems of others are not touched: a dead server does not hold the look up, nor start any probe.
func TestRealHungFUSE(t *testing.T) {
	n := newRealNode(t, FilesystemReadonly(DefaultFilesystemReadonlySettings()))
	hosttest.HangingFUSE(t)
	n.host.Prober = host.Prober{}
	findings, err := n.check.Run(t.Context(), n.host)
	if _, isPartial := errors.AsType[*finding.PartialError](err); err != nil && !isPartial {
		t.Fatal(findings, err)
	}
}
