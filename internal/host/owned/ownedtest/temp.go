// Package ownedtest gives tests a directory for files that are root's alone, or the tests' own user's: /tmp, where all
// may write, is not such a one.
package ownedtest

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Main runs the tests of a package with Temp, and fails when they leave goroutines. It ends by exit, os.Exit.
func Main(m *testing.M, exit func(code int)) {
	remove := Temp()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		remove()
		exit(code)
	}))
}

// Temp creates such a directory and makes t.TempDir create its own there; without one, nothing changes. It is for
// TestMain, or for one test. The function that it returns removes the directory.
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
		before, set := os.LookupEnv("TMPDIR")
		_ = os.Setenv("TMPDIR", dir)
		return func() {
			_ = os.RemoveAll(dir)
			if set {
				_ = os.Setenv("TMPDIR", before)
			} else {
				_ = os.Unsetenv("TMPDIR")
			}
		}
	}
	return func() {}
}
