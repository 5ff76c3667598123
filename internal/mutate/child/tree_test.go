package child_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// A directory swapped between being seen and being listed is not listed as the one seen.
func TestTreeSwappedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700),
		os.Mkdir(filepath.Join(dir, "b"), 0o700)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	seen := child.Entry{Path: "a", Type: child.Directory, File: mutatetest.FileID(t, filepath.Join(dir, "a"))}
	if _, err := child.ListDir(fd, "a", seen); err != nil {
		t.Error(err)
	}
	if _, err := child.ListDir(fd, "b", seen); !errors.Is(err, child.ErrChanged) {
		t.Errorf("swapped: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "b")), os.Symlink("a", filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	if _, err := child.ListDir(fd, "b", seen); err == nil {
		t.Error("a link was followed to the very directory")
	}
}
