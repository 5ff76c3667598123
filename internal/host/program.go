package host

import (
	"fmt"
	"io/fs"
)

// Program finds the process of one program in the network namespace of the host, and remembers it: as long as it lives, a
// look reads one file. It is for one caller at a time.
type Program struct {
	Comm string // the name that the kernel keeps: up to 15 bytes of the program file's

	last Process
}

// Find returns the process; where several have the name, the oldest by number. An error that wraps fs.ErrNotExist means that
// none runs; to find that out, all processes are looked through.
func (d *Program) Find(h *Host) (Process, error) {
	if h.lives(d.last) {
		return d.last, nil
	}
	d.last = Process{}
	processes, err := h.processesNamed(func(comm string, _ []string) bool { return comm == d.Comm })
	if err != nil {
		return Process{}, err
	}
	network, _ := h.Files.Link(procFile(h.Paths.InitPID, "ns/net")) // unknown: all count
	for _, process := range processes {
		own, err := h.Files.Link(procFile(process.PID, "ns/net"))
		if err != nil || network == "" || own == network {
			d.last = process
			return process, nil
		}
	}
	return Process{}, fmt.Errorf("no %s runs in the host's network: %w", d.Comm, fs.ErrNotExist)
}
