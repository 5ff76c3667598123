package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// down removes every trace of the lab in l.Dir. It does the same in all states: it does not ask processes to end but
// kills all of them, and then releases the remaining objects of the kernel and the disk. After any failure it may be
// run again.
func (l *Lab) down(ctx context.Context) error {
	if len(leftovers(ctx, l.Dir)) == 0 {
		return nil
	}
	l.logf("removing the lab in %s", l.Dir)
	ctx = context.WithoutCancel(ctx) // a half-removed lab is of no use; every step has its own limit
	old, err := readState(l.Dir)
	if err != nil {
		old = &state{Portmap: true} // unknown: do not touch chains that may belong to others
		l.logf("the earlier state of the host is unknown (%v): sysctls and folders outside the lab's stay as they are",
			err)
	}
	shims := shimSockets(l.Paths)
	steps := []struct {
		name string
		do   func() error
	}{
		{"end processes", func() error { return killAll(l.Dir) }},
		{"abort FUSE connections", func() error { return abortFUSE(l.Dir) }},
		{"remove port mappings", func() error { return removePortmap(ctx, old.Portmap) }},
		{"unmount", func() error { return unmountAll(l.Dir) }},
		{"detach loop devices", func() error { return detachLoops(l.Dir) }},
		{"remove links", func() error { return removeLinks(ctx, l.Paths) }},
		{"remove cgroups", func() error { return retry(5*time.Second, func() error { return removeCgroups(l.Dir) }) }},
		{"remove files elsewhere", func() error {
			return removeFiles(slices.Concat(foreignFiles(l.Paths, shims), old.deviceFiles(), old.lostSockets()))
		}},
		{"restore the host", old.restoreHost},
		{"remove the folder", func() error { return removeContents(l.Dir) }},
	}
	var errs []error
	for _, step := range steps {
		if err := step.do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step.name, err))
		}
	}
	if errors.Join(errs...) == nil { // otherwise the next attempt reads the host's state from lab.json
		errs = append(errs, os.RemoveAll(l.Dir))
	}
	if left := leftovers(ctx, l.Dir); len(left) > 0 {
		errs = append(errs, fmt.Errorf("left behind:\n  %s", strings.Join(left, "\n  ")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	l.logf("removed; nothing is left")
	return nil
}

// killAll ends every process of the lab. It repeats the census after each round: a process may have been about to start
// another.
func killAll(dir string) error {
	return retry(15*time.Second, func() error {
		// Both can prevent SIGKILL from working; their failures show in the census.
		_, _ = thaw(dir), abortFUSE(dir)
		found := census(dir)
		if len(found) == 0 {
			return nil
		}
		var errs []error
		for _, p := range found {
			errs = append(errs, p.signal(unix.SIGKILL))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return fmt.Errorf("%d processes have not ended", len(found))
	})
}

// retry repeats do until it succeeds or limit has passed.
func retry(limit time.Duration, do func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := do()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// shimSockets are the sockets of the lab's shims: containerd has them in /run/containerd/s, whatever its state folder,
// and records each beside the task it serves, 1.6 by itself and 2 among other data.
func shimSockets(p Paths) []string {
	// the pattern is well-formed
	notes, _ := filepath.Glob(filepath.Join(p.ContainerdState, "io.containerd.runtime.v2.task/*/*"))
	var sockets []string
	for _, note := range notes {
		address, _ := os.ReadFile(filepath.Join(note, "address"))
		var boot struct{ Address string }
		if data, err := os.ReadFile(filepath.Join(note, "bootstrap.json")); err == nil &&
			json.Unmarshal(data, &boot) == nil {
			address = []byte(boot.Address)
		}
		if socket := strings.TrimPrefix(strings.TrimSpace(string(address)), "unix://"); within(socket,
			"/run/containerd/s") {
			sockets = append(sockets, socket)
		}
	}
	return sockets
}

// foreignFiles are the lab's files outside its folder: libcni's records, shims' sockets, and the links to pods' logs
// that kubelet always makes in /var/log/containers.
func foreignFiles(p Paths, shims []string) []string {
	found := append(cniResults(p), shims...)
	links, _ := filepath.Glob("/var/log/containers/*.log") // the pattern is well-formed
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && within(to, p.PodLogsDir) {
			found = append(found, link)
		}
	}
	return found
}

func removeFiles(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeContents removes everything in the lab's folder except lab.json. There must be no mount left in it.
func removeContents(dir string) error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	if left := mountsWithin(mounts, dir); len(left) > 0 {
		return fmt.Errorf("%s is still mounted: not removing anything below %s", left[0].Point, dir)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if path == stateFile(dir) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// leftovers lists all existing objects of the lab in dir, in words for a person.
func leftovers(ctx context.Context, dir string) []string {
	var left []string
	add := func(kind string, names ...string) {
		for _, name := range names {
			left = append(left, kind+" "+name)
		}
	}
	for _, p := range census(dir) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
		add("process", fmt.Sprintf("%d (%s)", p.PID, strings.TrimSpace(string(name))))
	}
	if mounts, err := readMounts(); err != nil {
		add("unknown mounts:", err.Error())
	} else {
		for _, m := range mountsWithin(mounts, dir) {
			add("mount", m.Point)
		}
	}
	if cgroups, err := labCgroups(dir); err != nil {
		add("unknown cgroups:", err.Error())
	} else {
		add("cgroup", cgroups...)
	}
	paths := newPaths(dir, &state{})
	add("link", labLinks(paths)...)
	add("loop device", loopDevices(dir)...)
	add("file", foreignFiles(paths, nil)...)
	if strings.Contains(natRules(ctx), `name: \"`+Network+`\"`) {
		add("iptables rules of the network", Network)
	}
	if _, err := os.Lstat(dir); err == nil {
		add("folder", dir)
	}
	return left
}
