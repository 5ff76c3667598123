package mutate

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Exclusive makes sure that a filesystem is mounted nowhere but below the directory of the pod uid and in the mount
// namespaces of that pod's own processes. What is done to the filesystem as a whole (a forced unmount) would otherwise
// hit others.
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
			return refuse("the same filesystem is mounted on %s too", other.Point)
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

// inPod reports whether another mount lies in the directory of the pod. That directory in the mount table's words is
// taken from the judged mount, which is known to lie there.
func (d *Mutator) inPod(uid string, judged Mount, other mount.Mount) bool {
	pods, _, ok := strings.Cut(judged.Point, "/"+uid+"/")
	if !ok || uid == "" {
		return false
	}
	view := mount.MountView{PodsDir: pods}
	return mount.Below(other.Point, path.Join(pods, uid)) && view.OtherPod(uid, other) == ""
}

// exclusiveFrom looks for the filesystem in the mount namespace of one process, unless that process is one of the
// pod's.
func (d *Mutator) exclusiveFrom(pid int, uid string, m Mount, seen map[string]bool, known map[int]bool) error {
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
	mounts, err := mount.TableOf(d.host, pid)
	if errors.Is(err, unix.EINVAL) {
		return nil // it is ending, and has left its namespaces
	}
	if err != nil {
		return d.ignoreEnded(pid, err)
	}
	seen[space] = true // not before: another process of this namespace may live on
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
	for _, name := range cgroups {
		if d.ofPod(name, uid) {
			return true, nil
		}
	}
	return false, nil
}

// ignoreEnded forgets an error about a process that has ended meanwhile: such a one holds no mounts.
func (d *Mutator) ignoreEnded(pid int, err error) error {
	stat, now := d.host.ProcStat(pid)
	if vanished(now) || now == nil && (stat.State == 'Z' || stat.State == 'X') {
		return nil
	}
	return err
}
