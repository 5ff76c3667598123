package repair

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// disk is a filesystem of 1 MiB that is short of space: other files take the bytes outside the folder of core dumps.
// The files are real.
type disk struct {
	*world
	folders systemFolders
	other   uint64
	asked   func() // before each statfs
	switchd string // why everything is stopped

	unobserved bool // the agent has not observed the core dumps for ten days
}

// observeFor makes a runner have observed the core dumps for some time.
func observeFor(r *Runner, passed time.Duration) {
	_, files, err := r.tools.Mutator.ListFolder(context.Background(), r.tools.folders.coreDumps)
	if err == nil {
		before := r.options.Host.Clock()
		before.SinceBoot -= passed
		r.tools.dumps.observe(before, files)
	}
}

// onDisk gives the world such a disk on a node with ten days' uptime; less than a tenth is free, and core dumps are the
// only source.
func onDisk(w *world) *disk {
	d := &disk{world: w, folders: systemFolders{filepath.Join(w.dir, "coredump"), filepath.Join(w.dir, "journal")}}
	w.t.Helper()
	d.mkdir("coredump", "proc/1")
	d.write("proc/1/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n21 20 8:16 / /images rw - ext4 /dev/sdb rw\n")
	d.write("etc/machine-id", "9f2b1c7e4d6a4f0e8b3a5c1d2e7f6a90\n")
	stat, err := os.Stat(filepath.Join(w.dir, "etc/machine-id"))
	if err != nil {
		w.t.Fatal(err)
	}
	ahead := stat.ModTime().Add(10 * day).Sub(w.now().Wall)
	w.action = freeDiskSpace()
	w.settings.Actions = map[Name]release.Mode{"free-disk-space": release.On}
	w.settings.DiskSpace.CoreDumps = true
	w.believed.Finding = finding.Finding{Check: "disk-space", Subject: finding.Subject{Kind: "filesystem", Name: "/"},
		Severity: finding.Warning, Reason: "DiskSpaceLow", Facts: map[string]string{"device": "8:1"}}
	w.faulty = func() bool { return d.free() < diskTotal/10 }
	w.tune = func(r *Runner) {
		r.tools.folders = d.folders
		defer func() {
			if !d.unobserved {
				observeFor(r, 10*day)
			}
		}()
		r.tools.Stopped = func() string { return d.switchd }
		clock := func() finding.Timestamp {
			now := w.now()
			now.Wall = now.Wall.Add(ahead)
			return now
		}
		r.options.Host.Clock = clock
		r.tools.Host.Prober.Do = func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error) {
			if d.asked != nil {
				d.asked()
			}
			return probe.ProbeAnswer{TotalBytes: diskTotal, FreeBytes: d.free(), Inodes: 100, FreeInodes: 50}, nil
		}
	}
	return d
}

func (d *disk) mkdir(names ...string) {
	d.t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(d.dir, name), 0o755); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *disk) write(name, text string) {
	d.t.Helper()
	d.mkdir(filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// dump makes a core dump; to the node it is ten days old, plus older.
func (d *disk) dump(name string, older time.Duration) {
	d.t.Helper()
	d.write("coredump/"+name, strings.Repeat("x", dumpBytes))
	file := filepath.Join(d.dir, "coredump", name)
	if older < 0 { // the time of its attributes cannot be set
		if err := os.Chtimes(file, time.Time{}, fileTime(d.t, file).Add(-older)); err != nil {
			d.t.Fatal(err)
		}
	}
}

func fileTime(t *testing.T, name string) time.Time {
	stat, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return stat.ModTime()
}

func (d *disk) names() (names []string) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "coredump"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (d *disk) free() uint64 {
	used := d.other
	for _, name := range d.names() {
		if stat, err := os.Lstat(filepath.Join(d.dir, "coredump", name)); err == nil && stat.Mode().IsRegular() {
			used += uint64(stat.Size())
		}
	}
	return diskTotal - min(used, diskTotal)
}

// fill leaves this percentage free.
func (d *disk) fill(percent uint64) { d.other = 0; d.other = d.free() - diskTotal*percent/100 }

// ownFilesystem gives the folder of core dumps its own filesystem, which has the fault.
func (d *disk) ownFilesystem() {
	d.write("proc/1/mountinfo", "20 1 8:2 / / rw - ext4 /dev/sda2 rw\n21 20 8:1 / "+d.folders.coreDumps+
		" rw - ext4 /dev/sda1 rw\n")
	d.believed.Subject.Name = d.folders.coreDumps
}

// namespace gives a process its own mounts.
func (d *disk) namespace(pid int, mounts string) {
	d.write(fmt.Sprintf("proc/%d/mountinfo", pid), mounts)
	d.mkdir(fmt.Sprintf("proc/%d/ns", pid))
	if err := os.Symlink(fmt.Sprintf("mnt:[%d]", 4026532000+pid), filepath.Join(d.dir, fmt.Sprintf("proc/%d/ns/mnt", pid))); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) chmod(name string, mode os.FileMode) {
	d.t.Helper()
	if err := os.Chmod(filepath.Join(d.dir, name), mode); err != nil {
		d.t.Fatal(err)
	}
}
