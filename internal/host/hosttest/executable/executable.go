// Package executable writes the programs that tests run.
package executable

import (
	"errors"
	"os"
	"syscall"
)

// Write makes a file a program that all may run. While it is open for writing nothing else of this process may fork: the
// child of a test beside this one would inherit the open file until it executes something itself, and the kernel runs no
// program that anybody can write to ("text file busy", https://go.dev/issue/22315). It is the only way in which
// tests write programs.
func Write(name string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return errors.Join(os.WriteFile(name, program, 0o600), os.Chmod(name, 0o755)) //nolint:gosec // a program
}
