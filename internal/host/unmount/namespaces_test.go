package unmount_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/thread"
	"github.com/nodeagent/nodeagent/internal/host/unmount"
)

// A thread that ends while it is read does not hide the namespace of the others.
func TestOtherNamespacesOfThreads(t *testing.T) {
	root := t.TempDir()
	thread.Ending(t, root, "900 1 0:9 / / rw - tmpfs tmpfs rw\n")
	own := filepath.Join(root, "proc", fmt.Sprint(os.Getpid()))
	for _, err := range []error{
		os.MkdirAll(filepath.Join(own, "ns"), 0o755), os.Symlink(own, filepath.Join(root, "proc/self")),
		os.Symlink("mnt:[1]", filepath.Join(own, "ns/mnt")),
		os.WriteFile(filepath.Join(own, "mountinfo"), []byte("25 1 254:1 / / rw - ext4 /dev/vda1 rw\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	others, err := unmount.OtherNamespaces(files.Tree{Root: root}, nil)
	if err != nil || len(others) != 1 || others[0].PID != thread.EndingPID {
		t.Errorf("%+v, %v", others, err)
	}
}
