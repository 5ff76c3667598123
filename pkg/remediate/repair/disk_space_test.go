package repair

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	diskTotal = 1 << 20 // bytes
	dumpBytes = 64 << 10
)

// Old files go, oldest first, until the target is reached; the journal and the activities say how much was freed.
func TestFreesUntilEnough(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		d := onDisk(w)
		for _, name := range []string{"core.1", "core.2", "core.3", "core.4", "core.5", "core.6"} {
			d.dump(name, 0)
		}
		d.fill(8)
		if why := w.round(t.Context()); why != "" {
			t.Fatal(why)
		}
		// 17 % were missing: three dumps of 6.25 % each are enough.
		if want := []string{"core.4", "core.5", "core.6"}; !slices.Equal(d.names(), want) {
			t.Errorf("%q, want %q", d.names(), want)
		}
		last := w.journal()[len(w.journal())-1]
		const said = "finish verified: freed 192.0 KiB in 3 objects (core dumps 3 (192.0 KiB)): 8.0 % free (inodes 50.0 %) " +
			"before, 26.7 % free (inodes 50.0 %) now"
		if last != said {
			t.Errorf("%q, want %q", last, said)
		}
		if !slices.Contains(w.reported, "action-verified") {
			t.Errorf("%q", w.reported)
		}
	})
}

// Young files, links, their targets and other files than core dumps stay even if the target is not reached.
func TestFreesOnlyWhatMayGo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		d := onDisk(w)
		d.write("pod.log", "a living pod's")
		for _, name := range []string{"core.1", "other"} {
			d.dump(name, 0)
		}
		d.dump("core.0-young", -8*day)
		if err := os.Symlink(filepath.Join(d.dir, "pod.log"), filepath.Join(d.dir, "coredump/core.0-link")); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(filepath.Join(d.dir, "pod.log"), filepath.Join(d.dir, "coredump/core.0-hard")); err != nil {
			t.Fatal(err)
		}
		d.fill(8)
		if why := w.round(t.Context()); why != "" {
			t.Fatal(why)
		}
		if want := []string{"core.0-hard", "core.0-link", "core.0-young", "other"}; !slices.Equal(d.names(), want) {
			t.Errorf("%q, want %q", d.names(), want)
		}
		if last := w.journal()[len(w.journal())-1]; !strings.Contains(last, "in 1 objects") ||
			!strings.Contains(last, "below the target") {
			t.Errorf("%q", last)
		}
		if text, err := os.ReadFile(filepath.Join(d.dir, "pod.log")); string(text) != "a living pod's" {
			t.Error(string(text), err)
		}
	})
}

// If a disk fills faster than it is freed, each run is a failure and the next one waits; after three, repairs stop, and
// this is a finding.
func TestFillsFasterThanFreed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		d := onDisk(w)
		w.settings.PerHour, w.settings.PerDay = 100, 100
		for run := 1; run <= 3; run++ {
			d.dump(fmt.Sprint("core.", run), 0)
			d.fill(8)
			d.asked = func() { d.fill(8) }
			if why := w.round(t.Context()); why != "" {
				t.Fatal(why)
			}
			if last := w.journal()[len(w.journal())-1]; !strings.HasPrefix(last, "finish failed: the fault is still there") ||
				!strings.Contains(last, "freed 64.0 KiB in 1 objects") || !strings.Contains(last, "below the target") {
				t.Errorf("%q", last)
			}
			if len(d.names()) != 0 {
				t.Errorf("%q", d.names())
			}
			d.dump("core.next", 0)
			if why := w.round(t.Context()); run < 3 && !strings.Contains(why, "next try after") {
				t.Errorf("%q", why)
			}
			if err := os.Remove(filepath.Join(d.dir, "coredump/core.next")); err != nil {
				t.Error("it was tried again at once: ", err)
			}
			time.Sleep(3 * time.Hour)
		}
		d.dump("core.last", 0)
		if why := w.round(t.Context()); !strings.Contains(why, "3 repairs have failed within a day") {
			t.Errorf("%q", why)
		}
		found := w.runner().Findings()
		if len(found) != 1 || found[0].Reason != reasonStopped || len(d.names()) != 1 {
			t.Errorf("%+v, %q", found, d.names())
		}
	})
}

// If no file may be removed, no removal is tried and no attempt is counted.
func TestFreesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		change func(d *disk)
		want   string
	}{
		"enough is free":          {func(d *disk) { d.fill(30); d.faulty = func() bool { return true } }, "the target is already reached"},
		"all is young":            {func(d *disk) { d.settings.DiskSpace.CoreDumpAge = 20 * day }, "1, none is older than 480h"},
		"another filesystem":      {func(d *disk) { d.folders.coreDumps = "/images/coredump" }, "core dumps: on another filesystem"},
		"the mount was replaced":  {func(d *disk) { d.believed.Facts["device"] = "8:2" }, "another filesystem is mounted on /"},
		"anybody may write there": {func(d *disk) { d.chmod("coredump", 0o777) }, "others than root can write in it"},
		"a pod has it mounted": {func(d *disk) {
			d.write("proc/77/mountinfo", "900 800 8:1 "+d.folders.coreDumps+" /dumps rw - ext4 /dev/sda1 rw\n")
			d.mkdir("proc/77/ns")
			if err := os.Symlink("mnt:[4026532000]", filepath.Join(d.dir, "proc/77/ns/mnt")); err != nil {
				d.t.Fatal(err)
			}
		}, "in the mount namespace of process 77"},
		"a pod has its filesystem mounted": {func(d *disk) {
			d.ownFilesystem()
			d.namespace(77, "900 800 8:1 / /dumps rw - ext4 /dev/sda1 rw\n")
		}, "in the mount namespace of process 77"},
		"a pod has mounted something in it": {func(d *disk) {
			d.ownFilesystem()
			d.namespace(77, "899 800 8:2 / / rw - ext4 /dev/sda2 rw\n900 899 8:1 / "+d.folders.coreDumps+
				" rw - ext4 /dev/sda1 rw\n901 900 8:3 / "+d.folders.coreDumps+"/x rw - ext4 /dev/sdc rw\n")
		}, "in the mount namespace of process 77"},
		"its filesystem is read-only": {func(d *disk) {
			d.write("proc/1/mountinfo", "20 1 8:1 / / rw - ext4 /dev/sda1 ro,errors=remount-ro\n")
		}, "is mounted read-only"},
		"the kill switch": {func(d *disk) { d.switchd = "the file exists" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				d := onDisk(w)
				d.dump("core.1", 0)
				d.fill(8)
				test.change(d)
				why := w.round(t.Context())
				if !strings.Contains(why, test.want) || (why == "") != (test.want == "") {
					t.Errorf("%q, want %q", why, test.want)
				}
				if !slices.Equal(d.names(), []string{"core.1"}) {
					t.Errorf("%q", d.names())
				}
				if lines := w.journal(); test.want != "" && len(lines) > 0 {
					t.Errorf("%q", lines)
				}
			})
		})
	}
}

// Core dumps on their own filesystem still belong to the host, even if a service has a copy of the host's mounts.
func TestCoreDumpsOnAFilesystemOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		d := onDisk(w)
		d.dump("core.1", 0)
		d.fill(8)
		d.ownFilesystem()
		d.namespace(77, "899 800 8:2 / / rw - ext4 /dev/sda2 rw\n900 899 8:1 / "+d.folders.coreDumps+" rw - ext4 /dev/sda1 rw\n")
		d.namespace(78, "899 800 8:2 / /host rw - ext4 /dev/sda2 rw\n900 899 8:1 / /host"+d.folders.coreDumps+
			" rw - ext4 /dev/sda1 rw\n")
		if why := w.round(t.Context()); why != "" || len(d.names()) > 0 {
			t.Errorf("%q, left %q", why, d.names())
		}
	})
}

// The action handles a disk that will be full soon at every severity: severities are ordered by rank, not as words.
func TestFillingUpOfEverySeverity(t *testing.T) {
	s := Defaults()
	s.DiskSpace.Images = true
	for severity, want := range map[finding.Severity]bool{finding.Fatal: true, finding.Warning: true, finding.Info: false, "": false} {
		f := finding.Finding{Check: "disk-space", Reason: "DiskFillingUp", Severity: severity}
		if got := freeDiskSpace().answers(s, f); got != want {
			t.Errorf("%q: %v, want %v", severity, got, want)
		}
	}
}

// The kill switch is checked before each removal.
func TestStopsBetweenObjects(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		d := onDisk(w)
		for _, name := range []string{"core.1", "core.2", "core.3", "core.4"} {
			d.dump(name, 0)
		}
		d.fill(8)
		d.asked = func() {
			if len(d.names()) == 3 {
				d.switchd = "the file exists"
			}
		}
		w.round(t.Context())
		if got := d.names(); len(got) != 2 { // the one already begun is removed
			t.Errorf("%q", got)
		}
		if lines := strings.Join(w.journal(), "\n"); !strings.Contains(lines, "stopped: the file exists") {
			t.Error(lines)
		}
	})
}

// The action ignores findings of a pod's volume, and of a disk that will be full only tomorrow.
func TestDiskSpaceMatters(t *testing.T) {
	s := Defaults()
	s.DiskSpace.Journal = true
	f := func(check, reason string, severity finding.Severity, pods string) finding.Finding {
		return finding.Finding{Check: check, Reason: reason, Severity: severity, Facts: map[string]string{"pods": pods}}
	}
	for _, test := range []struct {
		f    finding.Finding
		want bool
	}{
		{f("evictions", "EvictionThresholdNear", finding.Info, ""), true},
		{f("disk-space", "DiskSpaceLow", finding.Warning, ""), true},
		{f("disk-space", "DiskSpaceLow", finding.Warning, "default/db"), false},
		{f("disk-space", "DiskFillingUp", finding.Warning, ""), true},
		{f("disk-space", "DiskFillingUp", finding.Info, ""), false},
		{f("evictions", "PodsEvicted", finding.Warning, ""), false},
	} {
		if got := freeDiskSpace().answers(s, test.f); got != test.want {
			t.Errorf("%+v: %v", test.f, got)
		}
	}
	if freeDiskSpace().answers(Defaults(), f("disk-space", "DiskSpaceLow", finding.Warning, "")) {
		t.Error("it acts without a source")
	}
}

// The missing amount is removed from the journal, but never below the floor; other files in the folder, and journald's
// active one, do not count.
func TestJournalFloor(t *testing.T) {
	for name, test := range map[string]struct {
		floor  uint64
		change func(d *disk)
		want   string
	}{
		"the floor":          {100 << 10, func(*disk) {}, "journal 3 (92.0 KiB), down to 100.0 KiB"},
		"what is missing":    {1, func(*disk) {}, "down to 17.9 KiB"},
		"below the floor":    {1 << 20, func(*disk) {}, "journal: archived 192.0 KiB, of which 1.0 MiB stay"},
		"elsewhere":          {1, func(d *disk) { d.folders.journals = "/images/journal" }, "journal: on another filesystem"},
		"no journal":         {1, func(d *disk) { d.folders.journals += "-none" }, "journal: archived 0 B"},
		"of another machine": {1, func(d *disk) { d.write("etc/machine-id", "../x\n") }, "find the journal of this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				d := onDisk(w)
				w.settings.DiskSpace.CoreDumps, w.settings.DiskSpace.Journal = false, true
				w.settings.DiskSpace.JournalFloorBytes = test.floor
				const dir = "journal/9f2b1c7e4d6a4f0e8b3a5c1d2e7f6a90/"
				for _, file := range []string{"system@1-1.journal", "system@1-2.journal", "user-1000@3.journal~", "system.journal"} {
					d.write(dir+file, strings.Repeat("x", dumpBytes))
				}
				d.fill(8)
				test.change(d)
				job, err := examineSpace(t.Context(), d.runner().tools, d.believed.Finding)
				if got := fmt.Sprint(job.Does, err); !strings.Contains(got, test.want) {
					t.Errorf("%q, want %q", got, test.want)
				}
			})
		})
	}
}
