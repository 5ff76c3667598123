package files_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/files"
)

// A file is read completely, whatever its length, or not at all.
func TestRead(t *testing.T) {
	tree := files.Tree{Root: t.TempDir()}
	for _, size := range []int{0, 1, 511, 512, 513, 1024, 4096, 1 << 20, files.Max} {
		want := bytes.Repeat([]byte("0123456789abcdef\n"), size/17+1)[:size]
		if err := os.WriteFile(tree.Path("file"), want, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := tree.Read("/file"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d bytes, %v", size, len(got), err)
		}
	}
	if err := os.Truncate(tree.Path("file"), files.Max+1); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Read("/file"); err == nil || got != nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a file that is too long: %d bytes, %v", len(got), err)
	}
	// A table that the kernel returns in parts, a page at a time.
	var maps []byte
	for range 3 { // other threads map memory meanwhile
		want, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		if maps, err = (files.Tree{}).Read("/proc/self/mountinfo"); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(maps, want) {
			return
		}
	}
	t.Errorf("mount table of %d bytes is not what the system's own reader has", len(maps))
}

// Anything but a regular file is an error at once, and for a missing file the error wraps the kernel's.
func TestReadRefuses(t *testing.T) {
	tree := files.Tree{Root: t.TempDir()}
	if err := unix.Mkfifo(tree.Path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", tree.Path("endless")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"/pipe": nil, "/endless": nil, "/": unix.EISDIR, "/absent": fs.ErrNotExist,
		"/pipe/below": unix.ENOTDIR} {
		got, err := tree.Read(name)
		if err == nil || got != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %q, %v, want %v", name, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), filepath.Base(name)) {
			t.Errorf("%s: the error does not name it: %v", name, err)
		}
	}
	if got, err := (files.Tree{}).Read("/proc/self/mem"); err == nil || got != nil { // address 0 is not mapped
		t.Errorf("an error while reading: %q, %v", got, err)
	}
}

func BenchmarkRead(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = (files.Tree{}).Read("/proc/self/limits")
	}
}
