package atomicfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
)

func content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestWriteReplaces(t *testing.T) {
	name := filepath.Join(t.TempDir(), "state")
	for _, text := range []string{"a long first version", "second"} {
		if err := atomicfile.WriteData(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := content(t, name); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %s", info.Mode())
	}
}

func TestWhatFailsLeavesTheOldFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "state")
	if err := atomicfile.WriteData(name, []byte("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	err := atomicfile.Write(name, func(w io.Writer) error {
		_, _ = io.WriteString(w, "half of the n")
		return full
	})
	if !errors.Is(err, full) || content(t, name) != "old" {
		t.Errorf("%v, %q", err, content(t, name))
	}
	if _, err := os.Lstat(name + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part stays: %v", err)
	}
}

// A link in place of the next file, or a leftover of a crash, is replaced, not followed.
func TestWriteFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	name, victim := filepath.Join(dir, "state"), filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, name+".new"); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.WriteData(name, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if content(t, name) != "new" || content(t, victim) != "untouched" {
		t.Errorf("%q, %q", content(t, name), content(t, victim))
	}
}
