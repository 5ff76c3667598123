package holders_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Every device that a process serves from user space is found, even if only the kernel shows it.
func TestServesDevice(t *testing.T) {
	for target, want := range map[string]string{
		"/dev/fuse": "/dev/fuse", "/dev/cuse": "/dev/cuse", "/dev/nbd12": "/dev/nbd12", "/dev/nbd0p1": "/dev/nbd0p1",
		"/dev/ublkc0": "/dev/ublkc0", "/dev/ublk-control": "/dev/ublk-control", "/dev/ublkc0 (deleted)": "/dev/ublkc0",
		"/dev/sda": "", "/data/nbd": "", "/data/nbdkit": "", "socket:[7]": "", "/home/fuse.txt": "",
	} {
		root := t.TempDir()
		hosttest.Write(t, root, "proc/10/task/10/fdinfo/3", "pos:\t0\n")
		hosttest.Write(t, root, "proc/10/task/10/fd/none", "")
		if err := os.Remove(root + "/proc/10/task/10/fd/none"); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, root+"/proc/10/task/10/fd/3"); err != nil {
			t.Fatal(err)
		}
		got, err := holders.ServesDevice(&host.Host{Files: host.Files{Root: root}}, 10)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", target, got, err, want)
		}
	}
}

// An nbd device set up over netlink belongs to the process of the thread that the kernel names.
func TestServesNBDOverNetlink(t *testing.T) {
	root := t.TempDir()
	stat := func(pid, tid int) {
		hosttest.Write(t, root, fmt.Sprintf("proc/%d/task/%d/stat", pid, tid), fmt.Sprintf("%d (rbd-nbd) S 1 1 1 0 -1 0 0 0 "+
			"0 0 0 0 0 0 20 0 1 0 100 0 0\n", tid))
		hosttest.Write(t, root, fmt.Sprintf("proc/%d/task/%d/fd/x", pid, tid), "")
		if err := os.Remove(fmt.Sprintf("%s/proc/%d/task/%d/fd/x", root, pid, tid)); err != nil {
			t.Fatal(err)
		}
	}
	stat(10, 10)
	stat(10, 12)
	stat(20, 20)
	hosttest.Write(t, root, "sys/block/nbd0/size", "0\n") // not connected
	hosttest.Write(t, root, "sys/block/nbd3/pid", "12\n")
	h := &host.Host{Files: host.Files{Root: root}}
	for pid, want := range map[int]string{10: "/dev/nbd3", 20: ""} {
		if got, err := holders.ServesDevice(h, pid); err != nil || got != want {
			t.Errorf("%d: %q, %v; want %q", pid, got, err, want)
		}
	}
	hosttest.Write(t, root, "sys/block/nbd3/pid", "many\n")
	if got, err := holders.ServesDevice(h, 20); err == nil {
		t.Errorf("a malformed answer of the kernel: %q", got)
	}
}

// Of the given mounts, Serves returns the one that a process may serve. Before Linux 6.16 that may be any.
func TestServes(t *testing.T) {
	for name, test := range map[string]struct{ target, info, want string }{
		"its connection":   {"/dev/fuse", "fuse_connection:\t46\n", "/b (fuse.s3fs)"},
		"another":          {"/dev/fuse", "fuse_connection:\t47\n", ""},
		"an older kernel":  {"/dev/fuse", "pos:\t0\n", "/a (fuse)"},
		"a device":         {"/dev/ublkc0", "pos:\t0\n", "/dev/ublkc0"},
		"an ordinary file": {"/dev/sda", "pos:\t0\n", ""},
	} {
		root := t.TempDir()
		hosttest.Write(t, root, "proc/10/task/10/fdinfo/3", test.info)
		if err := os.Mkdir(root+"/proc/10/task/10/fd", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(test.target, root+"/proc/10/task/10/fd/3"); err != nil {
			t.Fatal(err)
		}
		mounts := []mount.Mount{{Point: "/", FSType: "ext4", Major: 0, Minor: 47}, {Point: "/a", FSType: "fuse", Minor: 45},
			{Point: "/b", FSType: "fuse.s3fs", Minor: 46}}
		left := 10
		got, err := holders.Serves(&host.Host{Files: host.Files{Root: root}}, 10, mounts, &left)
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
}
