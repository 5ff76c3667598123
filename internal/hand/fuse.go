package hand

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// AbortFUSE ends the connection to a FUSE server that does not answer any more: every waiting call on that filesystem
// fails at once, which frees processes that nothing else can. All mounts of that filesystem are hit, so that it is refused
// when any lies outside of the directory of the pod uid, in whichever mount namespace.
// https://docs.kernel.org/filesystems/fuse/fuse.html
func (d *Hand) AbortFUSE(uid string, m Mount) error {
	if kind, _, _ := strings.Cut(m.FSType, "."); kind != "fuse" {
		return refuse("%s is no FUSE filesystem", m.FSType)
	}
	if err := d.Exclusive(uid, m); err != nil {
		return err
	}
	mounts, err := d.host.Mounts()
	if err != nil {
		return err
	}
	if _, err := pickMount(mounts, m); err != nil {
		return err
	}
	// The connection is named by the minor number of the anonymous device.
	_, minor, _ := strings.Cut(m.Device, ":")
	if _, err := strconv.ParseUint(minor, 10, 32); err != nil {
		return refuse("device %q", m.Device)
	}
	return writeBelow("/sys/fs/fuse/connections", minor+"/abort", "1")
}

// Exclusive makes sure that a filesystem is mounted nowhere but below the directory of the pod uid and in the mount
// namespaces of that pod's own processes. What is done to the filesystem as a whole (a forced unmount, an abort) would
// otherwise hit others.
func (d *Hand) Exclusive(uid string, m Mount) error {
	mounts, err := d.host.Mounts()
	if err != nil {
		return err
	}
	known := map[int]bool{} // IDs are unique among all namespaces
	for _, other := range mounts {
		known[other.ID] = true
		if other.Device() != m.Device {
			continue
		}
		if at, ok := d.podOfMount(other.Point, m.Point, uid); !ok {
			return refuse("the same filesystem is mounted on %s of %s", other.Point, at)
		}
	}
	pids, err := d.host.PIDs()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	if own, err := d.host.Files.Link("/proc/self/ns/mnt"); err == nil {
		seen[own] = true // the host's, looked at above
	}
	for _, pid := range pids {
		if err := d.exclusiveFrom(pid, uid, m, seen, known); err != nil {
			return err
		}
	}
	return nil
}

// podOfMount reports whether a mount point lies in the directory of the pod. The pod's directory in the mount table's
// words is taken from the judged mount, which is known to lie there.
func (d *Hand) podOfMount(point, judged, uid string) (string, bool) {
	top, _, ok := strings.Cut(judged, "/"+uid+"/")
	if !ok || uid == "" {
		return "an unknown pod", false
	}
	return "another pod", host.Below(point, top+"/"+uid)
}

// exclusiveFrom looks for the filesystem in the mount namespace of one process, unless that process is one of the pod's.
func (d *Hand) exclusiveFrom(pid int, uid string, m Mount, seen map[string]bool, known map[int]bool) error {
	space, err := d.host.Files.Link(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		space = strconv.Itoa(pid) // gone, or a namespace that cannot be named
	}
	if seen[space] {
		return nil
	}
	if ours, err := d.isOfPod(pid, uid); ours || err != nil {
		return err // not marked as seen: a stranger might live in the same namespace
	}
	seen[space] = true
	mounts, err := d.host.MountsOf(pid)
	if err != nil {
		return d.unlessEnded(pid, err)
	}
	for _, other := range mounts {
		if other.Device() == m.Device && !known[other.ID] {
			return refuse("the same filesystem is mounted in the mount namespace of process %d, on %s", pid, other.Point)
		}
	}
	return nil
}

func (d *Hand) isOfPod(pid int, uid string) (bool, error) {
	cgroups, err := d.host.ProcCgroups(pid)
	if err != nil {
		return false, d.unlessEnded(pid, err)
	}
	for _, name := range cgroups {
		if d.ofPod(name, uid) {
			return true, nil
		}
	}
	return false, nil
}

// unlessEnded forgets an error about a process that has ended meanwhile: such a one holds no mounts.
func (d *Hand) unlessEnded(pid int, err error) error {
	stat, now := d.host.ProcStat(pid)
	if vanished(now) || now == nil && (stat.State == 'Z' || stat.State == 'X') {
		return nil
	}
	return err
}
