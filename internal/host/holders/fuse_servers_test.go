package holders_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// A process that holds /dev/fuse counts as the server unless it can be ruled out.
func TestFUSEServers(t *testing.T) {
	root := t.TempDir()
	link := func(name, target string) {
		hosttest.Write(t, root, name, "")
		if err := os.Remove(root + "/" + name); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, root+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	file := func(task, fd, target, info string) {
		link("proc/"+task+"/fd/"+fd, target)
		hosttest.Write(t, root, "proc/"+task+"/fdinfo/"+fd, "pos:\t0\n"+info)
	}
	file("10/task/10", "3", "/dev/fuse", "fuse_connection:\t45\n")
	file("11/task/11", "3", "/dev/fuse", "fuse_connection:\t46\n")
	file("12/task/12", "3", "/dev/fuse", "")                         // an older kernel, or not connected yet
	file("13/task/13", "3", "/other/name", "fuse_connection:\t45\n") // another name of the device
	file("14/task/14", "3", "/home/fuse.txt", "")                    // a plain file
	file("15/task/15", "4", "/dev/null", "")                         // the first thread
	file("15/task/16", "3", "/dev/fuse", "fuse_connection:\t45\n")   // other files than the first thread's
	file("17/task/17", "3", "/dev/fuse", "fuse_connection:\tmany\n") // cannot rule it out
	file("18/task/18", "3", "/dev/fuse (deleted)", "")               // its /dev is gone
	link("proc/19/task/19/fd/3", "socket:[7]")                       // no path
	hosttest.Write(t, root, "proc/20/task/20/comm", "")              // ended
	h := &host.Host{Files: host.Files{Root: root}}
	servers, err := holders.FUSEServers(t.Context(), h, 45)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{10, 12, 13, 15, 17, 18}, servers); diff != "" {
		t.Error(diff)
	}
	hosttest.Write(t, root, "proc/21/task/21/fd", "") // cannot be listed
	if servers, err := holders.FUSEServers(t.Context(), h, 45); err == nil {
		t.Errorf("a process whose files could not be read: %v", servers)
	}
}

// A thread that starts another one and ends, while the files are searched, does not hide those of the other.
func TestOpensInLaterThread(t *testing.T) {
	root := t.TempDir()
	file := func(thread, fd, target string) {
		dir := filepath.Join(root, "proc/10/task", thread, "fd")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(target, filepath.Join(dir, fd))); err != nil {
			t.Fatal(err)
		}
	}
	hosttest.Write(t, root, "proc/10/task/10/comm", "") // the main thread, which has ended
	file("11", "3", "/a")
	later := false
	found, err := holders.Opens(&host.Host{Files: host.Files{Root: root}}, 10, func(target string) bool {
		if !later {
			later = true
			file("12", "4", "/b")
		}
		return target == "/b"
	})
	if err != nil || found != "/b" {
		t.Errorf("%q, %v", found, err)
	}
}
