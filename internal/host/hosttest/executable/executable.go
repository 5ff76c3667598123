// Package executable writes the programs that tests run.
package executable

import (
	"errors"
	"os"
	"syscall"
)

// Write writes a program that all users may run. While the file is open for writing, this process must not fork: the
// child of a parallel test would inherit the open file until its exec, and the kernel runs no program that is open for
// writing ("text file busy", https://go.dev/issue/22315). Tests write programs only with this function.
func Write(name string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return errors.Join(os.WriteFile(name, program, 0o600), os.Chmod(name, 0o755)) //nolint:gosec // a program
}
