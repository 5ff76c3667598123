package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"golang.org/x/sys/unix"
)

// group is a cgroup for a measured process: the kernel counts its children with it, and it shows the values that
// kubelet would report for a container.
type group struct {
	cpu, memory string // directories; the same in cgroup v2
	command     string // a script that runs the program in the cgroup
}

// newGroup makes a cgroup, and a command in dir that runs program in it if its first argument is verb, or there is
// none. The pages of the program are read from the disk again, so that they are charged to the process that uses them.
func newGroup(dir, name, program, verb string) (*group, error) {
	g := &group{command: filepath.Join(dir, name)}
	const cgroups = "/sys/fs/cgroup"
	g.cpu, g.memory = filepath.Join(cgroups, "cpuacct", name), filepath.Join(cgroups, "memory", name)
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		g.cpu, g.memory = filepath.Join(cgroups, name), filepath.Join(cgroups, name)
	}
	for _, dir := range []string{g.cpu, g.memory} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	own := g.command + ".program"
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = '%s' ] || [ -z '%[1]s' ] && echo $$ >%s/cgroup.procs && echo $$ >%s/cgroup.procs
exec %s "$@"
`, verb, g.cpu, g.memory, own)
	if err := writeUncached(own, data); err != nil {
		return nil, err
	}
	return g, executable.Write(g.command, []byte(script))
}

func writeUncached(name string, program []byte) error {
	if err := executable.Write(name, program); err != nil {
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// used returns the processor time of all processes that have run in the cgroup.
func (g *group) used() (time.Duration, error) {
	if text, err := os.ReadFile(filepath.Join(g.cpu, "cpuacct.usage")); err == nil {
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return time.Duration(n), err
	}
	text, err := os.ReadFile(filepath.Join(g.cpu, "cpu.stat"))
	return time.Duration(field(text, "usage_usec")) * time.Microsecond, err
}

// workingSet returns kubelet's working set in KiB: all memory that is charged to the cgroup, with the kernel's own and
// the cache of files, except pages of files that have not been used for long.
func (g *group) workingSet() (int, error) {
	usage, inactive := "memory.usage_in_bytes", "total_inactive_file "
	if g.cpu == g.memory {
		usage, inactive = "memory.current", "inactive_file "
	}
	text, err := os.ReadFile(filepath.Join(g.memory, usage))
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(filepath.Join(g.memory, "memory.stat"))
	if err != nil {
		return 0, err
	}
	charged, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return (charged - field(stat, inactive)) / 1024, err
}

// remove removes the cgroup, after its processes have ended.
func (g *group) remove() {
	for _, dir := range []string{g.cpu, g.memory} {
		for range 50 {
			if err := unix.Rmdir(dir); err == nil || os.IsNotExist(err) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}
