package owned

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxInterpreters bounds scripts whose interpreters are scripts, like the kernel's limit.
const maxInterpreters = 4

// Program returns nil for a program that may run with the agent's rights: an executable file of root's, whose
// interpreter, if it is a script, is root's too. It is called before each run. The program is then run by its name, not
// by a descriptor (a script has only its name, and the kernel would name the process after the descriptor's number):
// only root can replace it, because each directory in its path was found to be root's.
func Program(name string) error { return Tree{}.program(name, 0) }

func (t Tree) program(name string, depth int) error {
	fd, file, err := t.open(name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch {
	case file.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s: not a regular file", name)
	case file.Mode&0o111 == 0:
		return fmt.Errorf("%s: not executable, mode %04o", name, file.Mode&0o7777)
	}
	opened, err := os.OpenFile(descriptor(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrPermission) {
		return nil // executable but not readable: then it cannot be a script
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, errors.Unwrap(err))
	}
	defer opened.Close()
	head := make([]byte, 256) // BINPRM_BUF_SIZE
	n, err := io.ReadFull(opened, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	interpreter := interpreterOf(head[:n])
	switch {
	case interpreter == "":
		return nil
	case depth == maxInterpreters:
		return fmt.Errorf("%s: interpreters of interpreters", name)
	}
	if err := t.program(interpreter, depth+1); err != nil {
		return fmt.Errorf("%s: its interpreter: %w", name, err)
	}
	return nil
}

// interpreterOf reads the first line of a script: "#! /bin/sh -e".
func interpreterOf(head []byte) string {
	line, ok := bytes.CutPrefix(head, []byte("#!"))
	if !ok {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}
