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
