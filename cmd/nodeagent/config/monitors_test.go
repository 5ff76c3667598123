package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/test/need"
)

// TestMonitorsOfOthers: a file of node-problem-detector that users other than root can change is not run, `config
// validate` and `npd-files` name it with its mode, and its conditions are unknown. A volume of kubelet is trusted.
func TestMonitorsOfOthers(t *testing.T) {
	need.Root(t, "files of other users")
	const text = `{"plugin":"kmsg","logPath":"/dev/kmsg","source":"k","conditions":[{"type":"KernelDeadlock"}],"rules":[]}`
	plain := func(mode os.FileMode) func(string) error {
		return func(name string) error {
			return errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, mode))
		}
	}
	for name, test := range map[string]struct {
		put    func(name string) error
		broken string // empty: it is run
	}{
		"root's":            {plain(0o644), ""},
		"secret":            {plain(0o600), ""},
		"all may write":     {plain(0o666), "mode 0666: others than root can change it"},
		"others may write":  {plain(0o646), "mode 0646"},
		"a group may write": {plain(0o664), "mode 0664"},
		"a user's": {func(name string) error { return errors.Join(plain(0o644)(name), os.Chown(name, 1000, 0)) },
			"owned by user 1000"},
		"a ConfigMap's": {func(name string) error {
			dir := filepath.Join(filepath.Dir(name), "..data")
			return errors.Join(os.Mkdir(dir, 0o755), plain(0o644)(filepath.Join(dir, "m.json")), os.Symlink("..data/m.json", name),
				os.Chmod(filepath.Dir(name), 0o777))
		}, ""},
		"a link to a user's": {func(name string) error {
			return errors.Join(plain(0o666)(name+".real"), os.Symlink(name+".real", name))
		}, "mode 0666"},
		"a FIFO": {func(name string) error { return unix.Mkfifo(name, 0o644) }, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "m.json")
			if err := test.put(file); err != nil {
				t.Fatal(err)
			}
			m := ReadMonitors(npd.Settings{Files: []string{file}})
			if test.broken == "" {
				if len(m.Files) != 1 || len(m.Broken) > 0 {
					t.Errorf("%+v", m)
				}
				return
			}
			if len(m.Files) > 0 || len(m.Broken) != 1 || !strings.Contains(m.Broken[0].Error(), file+": "+test.broken) {
				t.Fatalf("%+v", m)
			}
			doubt, ok := errors.AsType[*npd.DoubtError](m.Broken[0])
			if errors.Is(m.Broken[0], owned.ErrOthers) != ok || ok && len(doubt.File.Conditions) != 1 {
				t.Errorf("conditions: %+v", doubt)
			}
		})
	}
}
