// Package ownedtest gives tests a directory for files that only root, or the tests' own user, can change: /tmp, where
// all users can write, is not one.
package ownedtest

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// Main is the TestMain of a package: it runs the tests with Temp, and fails if they leak goroutines.
func Main(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// tests are the tests of a package.
type tests struct{ m *testing.M }

// Run runs the tests with Temp and returns the exit status.
func (t tests) Run() int {
	defer Temp()()
	return t.m.Run()
}

// Temp creates such a directory and makes t.TempDir use it, if one can be created. It is for TestMain, or for one test.
// The returned function removes the directory.
func Temp() (remove func()) {
	if _, err := (owned.Tree{}).Check(os.TempDir()); err == nil {
		return func() {} // set by a test that started this process
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
