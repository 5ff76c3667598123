package program

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	page         = 4096
	interpreters = 4 // of scripts: the kernel's limit, BINPRM_MAX_RECURSION in fs/exec.c
)

// warm reads the parts of a program that execve(2) reads, so that they are in the page cache. exec.Cmd.Start waits in
// vfork(2) until the child has read them, and Go lets no other goroutine run on that processor meanwhile: on a disk that
// hangs, the whole process would hang. These reads hang alone. Errors are left to the start.
func warm(program, dir string) {
	if dir != "" {
		_, _ = os.Stat(dir)
	}
	for range interpreters {
		head, err := headOf(program)
		if err != nil {
			return
		}
		if program = interpreter(head); program == "" {
			return
		}
	}
}

func headOf(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, page)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return head[:n], err
}

// interpreter returns the program that the kernel reads together with one: of a script, or the loader of an ELF file
// (elf(5), PT_INTERP); empty if there is none.
func interpreter(head []byte) string {
	if script, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ := bytes.Cut(script, []byte("\n"))
		name, _, _ := strings.Cut(strings.TrimLeft(string(line), " \t"), " ")
		return strings.TrimSpace(name)
	}
	if len(head) < 64 || !bytes.HasPrefix(head, []byte("\x7fELF\x02\x01")) { // 64 bits, little endian
		return ""
	}
	at, size, count := binary.LittleEndian.Uint64(head[32:]), uint64(binary.LittleEndian.Uint16(head[54:])),
		binary.LittleEndian.Uint16(head[56:])
	for range count {
		if size < 56 || at > page || at+size > uint64(len(head)) {
			return ""
		}
		if h := head[at:]; binary.LittleEndian.Uint32(h) == 3 {
			from, length := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[32:])
			if from > page || length > page || from+length > uint64(len(head)) {
				return ""
			}
			return string(bytes.TrimRight(head[from:from+length], "\x00"))
		}
		at += size
	}
	return ""
}
