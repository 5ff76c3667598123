// Package ownedtest gives tests a place for files that are root's alone, or the tests' own user's: /tmp, where all
// may write, is none.
package ownedtest

import (
	"os"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Temp makes such a folder and has t.TempDir make its own there; where there is no such place, all stays as it is. It
// is for TestMain, or for one test. The function that it returns removes the folder.
func Temp() (remove func()) {
	if _, err := (owned.Tree{}).Check(os.TempDir()); err == nil {
		return func() {} // of a test that started this one as a process
	}
	home, _ := os.UserHomeDir()
	here, _ := os.Getwd()
	for _, base := range []string{"/var/lib", home, here} {
		if _, err := (owned.Tree{}).Check(base); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(base, "natest")
		if err != nil {
			continue
		}
		before, was := os.LookupEnv("TMPDIR")
		_ = os.Setenv("TMPDIR", dir)
		return func() {
			_ = os.RemoveAll(dir)
			if was {
				_ = os.Setenv("TMPDIR", before)
			} else {
				_ = os.Unsetenv("TMPDIR")
			}
		}
	}
	return func() {}
}
