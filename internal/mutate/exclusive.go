package mutate

import (
	"errors"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/host/unmount"
)

// Exclusive checks that a filesystem is mounted only below the directory of the pod uid and in the mount namespaces of
// that pod's processes. A change to the whole filesystem (a forced unmount) would otherwise affect other users.
func (d *Mutator) Exclusive(uid string, m Mount) error {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	known := map[int]bool{} // IDs are unique among all namespaces
	for _, other := range mounts {
		known[other.ID] = true
		if other.Device() != m.Device {
			continue
		}
		if !d.inPod(uid, m, other) {
			return refuse("the same filesystem is also mounted on %s", other.Point)
		}
	}
	pids, err := d.host.PIDs()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	if own, err := d.host.Files.Link("/proc/self/ns/mnt"); err == nil {
		seen[own] = true // the host's, checked above
	}
	for _, pid := range pids {
		if err := d.exclusiveFrom(pid, uid, m, seen, known); err != nil {
			return err
		}
	}
	return nil
}

// inPod reports whether another mount is in the directory of the pod. It takes the path of that directory in the mount
// table from the inspected mount, which is known to be in it.
func (d *Mutator) inPod(uid string, inspected Mount, other mount.Mount) bool {
	pods, _, ok := strings.Cut(inspected.Point, "/"+uid+"/")
	if !ok || uid == "" {
		return false
	}
	view := unmount.View{PodsDir: pods}
	return mount.Below(other.Point, path.Join(pods, uid)) && view.OtherPod(uid, other) == ""
}

// exclusiveFrom searches for the filesystem in the mount namespace of one process, unless the process belongs to the
// pod.
func (d *Mutator) exclusiveFrom(pid int, uid string, m Mount, seen map[string]bool, known map[int]bool) error {
	var space string
	var mounts []mount.Mount // none: the process is of the pod, or its namespace was seen
	isOfPod := sync.OnceValues(func() (bool, error) { return d.isOfPod(pid, uid) })
	err := proc.Shown(d.host.Files, pid, func(id int) (err error) {
		if space, err = d.host.Files.Link(proc.File(id, "ns/mnt")); err != nil {
			space = strconv.Itoa(pid) // gone, or its namespace cannot be read
		}
		if mounts = nil; seen[space] {
			return nil
		}
		if ours, err := isOfPod(); ours || err != nil {
			return err // not marked as seen: a process of another pod may be in the same namespace
		}
		mounts, err = mount.TableOf(d.host, id)
		return err
	})
	if errors.Is(err, unix.EINVAL) {
		return nil // it is exiting, and has left its namespaces
	}
	if err != nil {
		return d.ignoreEnded(pid, err)
	}
	if mounts == nil {
		return nil
	}
	seen[space] = true // only now: another process of this namespace may still exist
	for _, other := range mounts {
		if other.Device() == m.Device && !known[other.ID] {
			return refuse("the same filesystem is mounted in the mount namespace of process %d, on %s", pid,
				other.Point)
		}
	}
	return nil
}

func (d *Mutator) isOfPod(pid int, uid string) (bool, error) {
	cgroups, err := d.host.ProcCgroups(pid)
	if err != nil {
		return false, d.ignoreEnded(pid, err)
	}
	for _, name := range cgroups { // in any tree: the process is not changed
		if found, _, ok := d.host.Paths.PodOfCgroup(name); ok && found == uid && uid != "" {
			return true, nil
		}
	}
	return false, nil
}

// ignoreEnded ignores an error about a process that ended meanwhile: it holds no mounts.
func (d *Mutator) ignoreEnded(pid int, err error) error {
	stat, now := d.host.ProcStat(pid)
	if proc.Gone(now) || now == nil && !proc.Alive(stat) {
		return nil
	}
	return err
}
