package program

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// A program that users other than root can change is not run, in any way, and is checked before each run.
func TestForeignProgramsAreNotRun(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"that all may write":       func(path string) error { return os.Chmod(path, 0o777) },
		"in a folder that all may": func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
		"in a folder with a sticky it": func(path string) error {
			return os.Chmod(filepath.Dir(path), 0o777|os.ModeSticky)
		},
	} {
		t.Run(name, func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "mark")
			path, runner := script(t, "touch "+mark), new(Runner)
			if _, err := runner.Run(t.Context(), Command{Path: path}); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(mark), spoil(path)); err != nil {
				t.Fatal(err)
			}
			if _, err := runner.Run(t.Context(), Command{Path: path}); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("Run: %v", err)
			}
			lines := Lines{Each: func([]byte) {}}
			if err := Read(t.Context(), Command{Path: path}, lines); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("Read: %v", err)
			}
			if err := Follow(t.Context(), Command{Path: path}, lines); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("Follow: %v", err)
			}
			if _, err := os.Stat(mark); !os.IsNotExist(err) {
				t.Errorf("it was run: %v", err)
			}
		})
	}
}
