//go:build faultpoints

// Package faultpoint lets tests kill the real agent between any two steps of a release.
package faultpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// armed is process-wide because the points are deep in code that production builds compile without them.
var armed struct {
	sync.Mutex
	name string // only points whose name contains this count; empty: all
	left int    // the process dies at the left-th hit; 0: not armed
	log  string // every hit is appended to this file, so that a test can list them
}

// Arm reads the plan from a file with lines "at N", "name TEXT" and "log PATH": the process is killed (SIGKILL, as in a
// crash) at the Nth hit of a point whose name contains TEXT.
func Arm(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	armed.Lock()
	defer armed.Unlock()
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "at":
			if armed.left, err = strconv.Atoi(value); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		case "name":
			armed.name = value
		case "log":
			armed.log = value
		case "":
		default:
			return fmt.Errorf("%s: unknown line %q", file, line)
		}
	}
	return nil
}

// Hit counts, and kills the process when the count is reached.
func Hit(name string) {
	armed.Lock()
	defer armed.Unlock()
	if !strings.Contains(name, armed.name) {
		return
	}
	if armed.log != "" {
		if file, err := os.OpenFile(armed.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			fmt.Fprintln(file, name)
			file.Close()
		}
	}
	if armed.left--; armed.left == 0 {
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // until the signal arrives
	}
}
