// Package secretfile reads files with secrets: tokens, keys, credentials. It refuses one that others may read or change.
package secretfile

import (
	"fmt"
	"io/fs"
	"os"
)

// Check refuses a file that users other than its owner may use. Its group may read it: Kubernetes uses the group to
// give a pod the files of a Secret.
func Check(name string) error { return check(name, 0o037, "want 0640 or less") }

// CheckOwn refuses a file that anybody but its owner may use.
func CheckOwn(name string) error { return check(name, 0o077, "want 0600") }

func check(name string, others fs.FileMode, want string) error {
	info, err := os.Stat(name)
	if err == nil && info.Mode().Perm()&others != 0 {
		err = fmt.Errorf("%s: others may use it (mode %#o, %s)", name, info.Mode().Perm(), want)
	}
	return err
}

// Read is os.ReadFile of a file that passes Check.
func Read(name string) ([]byte, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}
