package mutate_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// A plugin that users other than root can change is not run, and the attachment stays known.
func TestDelAttachmentForeignPlugin(t *testing.T) {
	mutatetest.Root(t)
	for name, spoil := range map[string]func(plugin string) error{
		"a user's":                 func(plugin string) error { return os.Chown(plugin, 65534, 0) },
		"that all may write":       func(plugin string) error { return os.Chmod(plugin, 0o777) },
		"in a folder of a user's":  func(plugin string) error { return os.Chown(filepath.Dir(plugin), 65534, 0) },
		"in a folder that all may": func(plugin string) error { return os.Chmod(filepath.Dir(plugin), 0o777) },
		"by a link of a user's": func(plugin string) error {
			to := filepath.Join(filepath.Dir(filepath.Dir(plugin)), "other")
			return errors.Join(os.Rename(plugin, to), os.Symlink(to, plugin), os.Lchown(plugin, 65534, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
			mark := filepath.Join(n.Dir, "mark")
			plugin := n.Program(filepath.Join(n.Dir, "bin/mine"), "#!/bin/sh\ntouch "+mark+"\n")
			n.Host.Paths.CNIBinDirs = []string{filepath.Join(n.Dir, "bin")}
			if err := spoil(plugin); err != nil {
				t.Fatal(err)
			}
			cacheFile(t, n, "net", id, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"mine"}]}`)
			a := attachment(t, n, "net", id)
			if err := n.Mutator.DelAttachment(t.Context(), a); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Lstat(mark); err == nil {
				t.Error("the plugin ran")
			}
			if _, err := os.Lstat(a.File); err != nil {
				t.Errorf("the attachment is forgotten: %v", err)
			}
		})
	}
}

// Of two plugins, the second of the list is the first of a DEL. If the other one is a user's from the start, neither runs;
// if it becomes so while the first runs, it does not run.
func TestForeignPluginOfTwo(t *testing.T) {
	mutatetest.Root(t)
	for name, c := range map[string]struct {
		spoilsBefore bool
		firstRuns    bool
	}{"from the start": {true, false}, "meanwhile": {false, true}} {
		t.Run(name, func(t *testing.T) {
			n, id := mutatetest.New(t), mutatetest.Hex(t, 64)
			mark := func(of string) string { return filepath.Join(n.Dir, "mark-"+of) }
			foreign := n.Program(filepath.Join(n.Dir, "bin/foreign"), "#!/bin/sh\ntouch "+mark("foreign")+"\n")
			n.Program(filepath.Join(n.Dir, "bin/first"), "#!/bin/sh\ntouch "+mark("first")+"\nchmod 777 "+foreign+"\n")
			n.Host.Paths.CNIBinDirs = []string{filepath.Join(n.Dir, "bin")}
			if c.spoilsBefore {
				if err := os.Chmod(foreign, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			cacheFile(t, n, "net", id, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"foreign"},{"type":"first"}]}`)
			if err := n.Mutator.DelAttachment(t.Context(), attachment(t, n, "net", id)); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Lstat(mark("first")); (err == nil) != c.firstRuns {
				t.Errorf("the first plugin: %v", err)
			}
			if _, err := os.Lstat(mark("foreign")); err == nil {
				t.Error("the plugin of a user ran")
			}
		})
	}
}
