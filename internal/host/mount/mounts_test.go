package mount_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestParseMounts(t *testing.T) {
	for name, test := range map[string]struct {
		line string
		want mount.Mount
	}{
		"plain": {
			"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard",
			mount.Mount{ID: 27, Parent: 1, Major: 254, Root: "/", Point: "/", FSType: "ext4", Source: "/dev/vda",
				Options: []string{"rw", "relatime"}, SuperOptions: []string{"rw", "discard"}, Optional: "shared:1",
				Shared: 1},
		},
		"no tags, anonymous device": {
			"61 27 0:115 /a /mnt ro - btrfs /dev/loop0 rw,subvol=/a",
			mount.Mount{ID: 61, Parent: 27, Minor: 115, Root: "/a", Point: "/mnt", FSType: "btrfs",
				Source:  "/dev/loop0",
				Options: []string{"ro"}, SuperOptions: []string{"rw", "subvol=/a"}},
		},
		"unknown tags": {
			"36 35 98:0 / /m rw master:2 propagate_from:1 novel - xfs /dev/sdb1 rw",
			mount.Mount{ID: 36, Parent: 35, Major: 98, Root: "/", Point: "/m", FSType: "xfs", Source: "/dev/sdb1",
				Options: []string{"rw"}, SuperOptions: []string{"rw"}, Optional: "master:2 propagate_from:1 novel",
				Master: 2, PropagateFrom: 1},
		},
		"a slave that is shared": {
			"36 35 98:0 / /m rw shared:7 master:2 - xfs /dev/sdb1 rw",
			mount.Mount{ID: 36, Parent: 35, Major: 98, Root: "/", Point: "/m", FSType: "xfs", Source: "/dev/sdb1",
				Options: []string{"rw"}, SuperOptions: []string{"rw"}, Optional: "shared:7 master:2", Shared: 7,
				Master: 2},
		},
		"unbindable": {
			"36 35 98:0 / /m rw unbindable - xfs /dev/sdb1 rw",
			mount.Mount{ID: 36, Parent: 35, Major: 98, Root: "/", Point: "/m", FSType: "xfs", Source: "/dev/sdb1",
				Options: []string{"rw"}, SuperOptions: []string{"rw"}, Optional: "unbindable"},
		},
		"escapes": {
			`36 35 0:9 /r\134x /a\040b\011c\012d rw - tmpfs no\040ne rw,upper=/x\054y\040z`,
			mount.Mount{ID: 36, Parent: 35, Minor: 9, Root: `/r\x`, Point: "/a b\tc\nd", FSType: "tmpfs",
				Source:  "no ne",
				Options: []string{"rw"}, SuperOptions: []string{"rw", "upper=/x,y z"}},
		},
		"source is a dash": {
			"36 35 0:9 / /m rw - tmpfs - rw",
			mount.Mount{ID: 36, Parent: 35, Minor: 9, Root: "/", Point: "/m", FSType: "tmpfs", Source: "-",
				Options: []string{"rw"}, SuperOptions: []string{"rw"}},
		},
		"source is empty": {
			"36 35 0:9 / /m rw - tmpfs  rw",
			mount.Mount{ID: 36, Parent: 35, Minor: 9, Root: "/", Point: "/m", FSType: "tmpfs", Options: []string{"rw"},
				SuperOptions: []string{"rw"}},
		},
		"bare backslashes of CIFS": {
			`36 35 0:9 / /m rw - cifs //srv\share rw,domain=D\user,unc=//srv/My Docs`,
			mount.Mount{ID: 36, Parent: 35, Minor: 9, Root: "/", Point: "/m", FSType: "cifs", Source: `//srv\share`,
				Options: []string{"rw"}, SuperOptions: []string{"rw", `domain=D\user`, "unc=//srv/My Docs"}},
		},
		"line of 200 KiB": {
			"36 35 0:9 / /m rw - overlay o rw,lowerdir=" + strings.Repeat("/layer:", 30_000),
			mount.Mount{ID: 36, Parent: 35, Minor: 9, Root: "/", Point: "/m", FSType: "overlay", Source: "o",
				Options: []string{"rw"}, SuperOptions: []string{"rw", "lowerdir=" + strings.Repeat("/layer:", 30_000)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mountinfo.Parse(strings.NewReader(test.line + "\n"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]mount.Mount{test.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseMountsRejects(t *testing.T) {
	for name, line := range map[string]string{
		"cut short":           "27 1 254:0 / / rw,relatime - ext4 /dev/vda",
		"no dash":             "27 1 254:0 / / rw,relatime ext4 /dev/vda rw a b",
		"bad ID":              "x 1 254:0 / / rw - ext4 /dev/vda rw",
		"no minor":            "27 1 254 / / rw - ext4 /dev/vda rw",
		"negative minor":      "27 1 254:-1 / / rw - ext4 /dev/vda rw",
		"no peer group":       "27 1 254:0 / / rw shared:x - ext4 /dev/vda rw",
		"peer group 0":        "27 1 254:0 / / rw master:0 - ext4 /dev/vda rw",
		"relative mountpoint": "27 1 254:0 / mnt rw - ext4 /dev/vda rw",
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mountinfo.Parse(strings.NewReader("22 27 0:21 / /proc rw - proc proc rw\n" + line + "\n"))
			if err == nil || got != nil {
				t.Fatalf("Parse(%q) = %v, %v; want an error alone", line, got, err)
			}
			if !strings.Contains(err.Error(), line) {
				t.Errorf("error %q does not quote the line", err)
			}
		})
	}
}

func TestHostMounts(t *testing.T) {
	root := t.TempDir()
	hosttest.Write(t, root, "proc/7/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n")
	hosttest.Write(t, root, "proc/8/mountinfo", "")
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{InitPID: 7}}
	got, err := mount.Table(h)
	if err != nil || len(got) != 1 || got[0].Point != "/proc" {
		t.Errorf("Mounts() = %v, %v", got, err)
	}
	if _, err := mount.TableOf(h, 8); err == nil {
		t.Error("an empty table proves nothing, want an error")
	}
	if own, err := mount.TableOf((&host.Host{}), os.Getpid()); err != nil || len(own) == 0 {
		t.Errorf("own mounts = %v, %v", own, err)
	}
}

func TestBelow(t *testing.T) {
	for _, test := range []struct {
		name, dir string
		want      bool
	}{
		{"/var/lib/kubelet", "/var/lib/kubelet", true},
		{"/var/lib/kubelet/pods/a", "/var/lib/kubelet/", true},
		{"/var/lib/kubelet2", "/var/lib/kubelet", false},
		{"/var/lib", "/var/lib/kubelet", false},
		{"/", "/", true},
		{"/x", "/", true},
		{"/var/lib/kubelet/../x", "/var/lib/kubelet", false},
	} {
		if got := mount.Below(test.name, test.dir); got != test.want {
			t.Errorf("Below(%q, %q) = %v", test.name, test.dir, got)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add("27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n")
	f.Add(`36 35 0:9 /r\134x /a\040b rw - tmpfs no\040ne rw,x=\054` + "\n\n")
	f.Fuzz(func(t *testing.T, table string) {
		mounts, err := mountinfo.Parse(strings.NewReader(table))
		if err != nil && mounts != nil {
			t.Fatal("error and value")
		}
		for _, m := range mounts {
			if !strings.HasPrefix(m.Point, "/") || len(m.Options) == 0 || len(m.SuperOptions) == 0 {
				t.Fatalf("incomplete mount %+v", m)
			}
		}
	})
}

// A thread that ends while it is read does not hide the mounts that the others of its process see.
func TestMountedFromThreads(t *testing.T) {
	h := hosttest.Host(t)
	hosttest.WriteHostFile(t, h, "proc/1/mountinfo", "25 1 254:1 / / rw - ext4 /dev/vda1 rw\n")
	thread.Ending(t, h.Files.Root, "900 1 0:9 / / rw - tmpfs tmpfs rw\n901 900 254:1 /data/x /y rw - ext4 /dev/vda1 rw\n")
	if at, err := mount.MountedFrom(t.Context(), h, "/data/x"); err != nil || at != (mount.MountedAt{PID: thread.EndingPID, Point: "/y"}) {
		t.Errorf("%+v, %v", at, err)
	}
}
