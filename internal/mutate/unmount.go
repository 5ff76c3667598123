package mutate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Mount is the identity of one mount, as inspected.
type Mount struct {
	ID     int    `json:"id"`
	Device string `json:"device"` // major:minor
	Root   string `json:"root"`   // mounted part of the filesystem
	Point  string `json:"point"`  // as in the mount table
	Source string `json:"source"`
	FSType string `json:"fsType"`
}

// Way is how to unmount.
type Way int

// The ways, gentlest first.
const (
	Plain  Way = iota // the kernel refuses if the mount is in use
	Forced            // MNT_FORCE: aborts requests to a dead server, for all mounts of the filesystem
	Lazy              // MNT_DETACH: removes the mount from the tree while in use; network and FUSE only
)

// harm means that an unmount affected other mounts. It is also an ErrChanged, which stops the release.
type harm struct{ why string }

func (h harm) Error() string { return h.why }

func (h harm) Is(target error) bool { return target == ErrHarm || target == ErrChanged }

// ErrHarm means that an unmount unexpectedly removed other mounts too.
var ErrHarm = errors.New("other mounts are gone too")

// Unmount unmounts one mount below the directory of the pod uid. ErrBusy: it is in use or covered by another mount.
// ErrChanged: it is another mount now. A Refusal: the unmount would propagate to mounts outside of the pod's directory.
// ErrHarm: it did propagate. It is no error if the mount is gone.
//
// The kernel cannot unmount by ID, so another mount could appear on top between the last check and the unmount: the
// check is the system call right before it. See unmountChild.
func (d *Mutator) Unmount(ctx context.Context, uid string, m Mount, way Way) error {
	r := request{Op: opUnmount, Base: d.podsDir(), UID: uid, Mount: m, Flags: unix.UMOUNT_NOFOLLOW}
	switch way {
	case Forced:
		r.Flags |= unix.MNT_FORCE
	case Lazy:
		r.Flags |= unix.MNT_DETACH
	}
	if way != Plain {
		if !Remote(m.FSType) {
			return refuse("%s is a local filesystem: its unmount is never forced", m.FSType)
		}
		if err := d.Exclusive(uid, m); err != nil {
			return err
		}
	}
	a, err := d.do(ctx, r)
	if err != nil {
		return err
	}
	for _, note := range a.Notes {
		d.log.Info("unmounting", "mount", m.Point, "note", note)
	}
	if err := d.checkUnmounted(m); err != nil {
		return err
	}
	if a.Outcome == outcomeDone && way == Lazy {
		d.log.Warn("unmounted lazily: its users keep it alive unseen", "mount", m.Point, "fstype", m.FSType)
	}
	return nil
}

// checkUnmounted checks that the mount is no longer in the host's mount table. It still is if the agent runs in a mount
// namespace other than the host's.
func (d *Mutator) checkUnmounted(m Mount) error {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return err
	}
	for _, now := range mounts {
		if now.ID == m.ID && sameMount(now, m) {
			return fmt.Errorf("mount %d on %s is still in the host's mount table", m.ID, m.Point)
		}
	}
	return nil
}

// Remote reports whether a filesystem depends on a server that may be gone: network filesystems and FUSE.
func Remote(fsType string) bool {
	kind, _, _ := strings.Cut(fsType, ".")
	return slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "glusterfs", "lustre", "afs",
		"beegfs", "gpfs", "fuse"}, kind)
}

func sameMount(now mount.Mount, inspected Mount) bool {
	return now.Device() == inspected.Device && now.Root == inspected.Root &&
		now.Source == inspected.Source && now.FSType == inspected.FSType && now.Point == inspected.Point
}

// unmountChild unmounts one mount. It decides again, from the current mount table, whether that stays within the pod's
// directory, makes the parent mount private if needed, and compares the table afterwards.
func unmountChild(r request) ([]string, error) {
	own := host.Host{}
	return unmountAndCheck(r, func() ([]mount.Mount, error) { return mount.TableOf(&own, unix.Getpid()) })
}

func unmountAndCheck(r request, table func() ([]mount.Mount, error)) ([]string, error) {
	before, m, err := viewMounts(r, table)
	if err != nil {
		return nil, err
	}
	if child, ok := childOf(before.Mounts, m); ok && r.Flags&unix.MNT_DETACH != 0 {
		return nil, fmt.Errorf("%s: mount %d on %s is below it: %w", m.Point, child.ID, child.Point, unix.EBUSY)
	}
	plan, notes, err := confine(r, before, m, table)
	if err != nil {
		return notes, err
	}
	if err := unmountAt(r, m); err != nil {
		return notes, err
	}
	later, err := table()
	if err != nil {
		return notes, harm{fmt.Sprintf("%s was unmounted; whether other mounts are gone too is not known: %v", m.Point,
			err)}
	}
	more, err := checkEffects(before, later, m, plan)
	return append(notes, more...), err
}

// confine ensures that the unmount of m has no effect outside of the pod's directory.
func confine(r request, view mount.MountView, m mount.Mount, table func() ([]mount.Mount, error)) (
	plan mount.UnmountPlan, notes []string, err error,
) {
	plan = view.Unmount(r.UID, m.ID)
	if plan.Refused == "" && plan.Private != nil {
		if err := makePrivate(r, *plan.Private); err != nil {
			return plan, nil, err
		}
		notes = append(notes, "made private: "+plan.Private.Point)
		if view, m, err = viewMounts(r, table); err != nil {
			return plan, notes, err
		}
	}
	if view.Others, err = otherNamespaces(view.Mounts, m); err != nil {
		return plan, notes, err
	}
	plan = view.Unmount(r.UID, m.ID)
	switch {
	case plan.Refused != "":
		return plan, notes, refuse("%s: %s", m.Point, plan.Refused)
	case plan.Private != nil:
		return plan, notes, refuse("%s: %s is still shared", m.Point, plan.Private.Point)
	}
	return plan, notes, nil
}

// checkEffects reports which other mounts are gone after an unmount.
func checkEffects(before mount.MountView, later []mount.Mount, m mount.Mount, plan mount.UnmountPlan) (notes []string,
	err error) {
	for _, effect := range plan.Along {
		notes = append(notes, "gone with it: "+effect.String())
	}
	lost, unrelated := before.Vanished(later, m, plan.Along)
	if len(unrelated) > 0 {
		notes = append(notes, fmt.Sprintf("%d unrelated mounts were unmounted meanwhile, one of them %s",
			len(unrelated), unrelated[0].Point))
	}
	if len(lost) > 0 {
		return notes, harm{fmt.Sprintf(
			"the unmount of %s removed %d other mounts, the first is %s",
			m.Point, len(lost), mount.MountEffect{Mount: lost[0]})}
	}
	return notes, nil
}

// unmountAt opens the parent directory of the mount point without following links, enters it, checks that the name in
// it is this mount, and unmounts it by that name.
func unmountAt(r request, m mount.Mount) error {
	dir, name, err := openMountParent(r, m)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Fchdir(dir); err != nil {
		return fmt.Errorf("enter directory of %s: %w", m.Point, err)
	}
	if err := isMount(unix.AT_FDCWD, name, m); err != nil {
		return err
	}
	if err := unix.Unmount(name, r.Flags); err != nil {
		return fmt.Errorf("%s: %w", m.Point, err)
	}
	return nil
}

// makePrivate removes a mount in the pod's directory, and all below it, from their peer groups.
func makePrivate(r request, m mount.Mount) error {
	dir, name, err := openMountParent(r, m)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := openBelow(dir, name, unix.O_PATH, resolveBeneath)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := isMount(fd, "", m); err != nil {
		return err
	}
	if err := unix.Mount("", "/proc/self/fd/"+strconv.Itoa(fd), "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make %s private: %w", m.Point, err)
	}
	return nil
}

// viewMounts reads the mount table and finds the inspected mount in it.
func viewMounts(r request, table func() ([]mount.Mount, error)) (mount.MountView, mount.Mount, error) {
	mounts, err := table()
	if err != nil {
		return mount.MountView{}, mount.Mount{}, err
	}
	m, err := pickMount(mounts, r.Mount)
	if err != nil {
		return mount.MountView{}, m, err
	}
	base, err := openBase(r.Base)
	if err != nil {
		return mount.MountView{}, m, err
	}
	defer unix.Close(base)
	real, err := realPath(base)
	if err != nil {
		return mount.MountView{}, m, err
	}
	pods, err := host.Files{}.List(real)
	return mount.MountView{Mounts: mounts, PodsDir: real, Pods: pods}, m, err
}

// otherNamespaces returns the mount tables of all other namespaces with processes, or none if the parent mount of m is
// not shared.
func otherNamespaces(mounts []mount.Mount, m mount.Mount) ([]mount.MountNamespace, error) {
	if !slices.ContainsFunc(mounts, func(p mount.Mount) bool { return p.ID == m.Parent && p.Shared != 0 }) {
		return nil, nil
	}
	own := host.Host{}
	return mount.OtherMountNamespaces(&own)
}

// pickMount finds the inspected mount in a mount table.
func pickMount(mounts []mount.Mount, inspected Mount) (mount.Mount, error) {
	at := slices.IndexFunc(mounts, func(m mount.Mount) bool { return m.ID == inspected.ID })
	if at < 0 {
		return mount.Mount{}, errGone
	}
	m := mounts[at]
	if !sameMount(m, inspected) {
		return m, changed("mount %d is %s of device %s on %s", m.ID, m.FSType, m.Device(), m.Point)
	}
	if child, ok := childOf(mounts, m); ok && child.Point == m.Point {
		return m, fmt.Errorf("%s: mount %d is on top of it: %w", m.Point, child.ID, unix.EBUSY)
	}
	return m, nil
}

// childOf returns a child mount of m, preferably one that covers it.
func childOf(mounts []mount.Mount, m mount.Mount) (child mount.Mount, ok bool) {
	for _, c := range mounts {
		if c.Parent == m.ID && c.ID != m.ID && (!ok || c.Point == m.Point) {
			child, ok = c, true
		}
	}
	return child, ok
}

// openMountParent opens the parent directory of a mount point, which must be below the pod's own directory.
func openMountParent(r request, m mount.Mount) (dir int, name string, err error) {
	base, err := openBase(r.Base)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(base)
	real, err := realPath(base)
	if err != nil {
		return -1, "", err
	}
	rest, ok := strings.CutPrefix(m.Point, path.Join(real, r.UID)+"/")
	if !ok || !isLocal(r.UID) || strings.Contains(r.UID, "/") || !isLocal(rest) {
		return -1, "", refuse("%s is not below the directory of pod %s", m.Point, r.UID)
	}
	parent, name := path.Split(path.Join(r.UID, rest))
	// Mounts may be nested, so resolving the path may cross some: the caller checks the result.
	dir, err = openBelow(base, path.Clean(parent), unix.O_PATH|unix.O_DIRECTORY, resolveBeneath)
	return dir, name, err
}

// isMount checks that name is the root of this mount.
func isMount(dir int, name string, m mount.Mount) error {
	st, err := statAt(dir, name)
	if err != nil {
		return err
	}
	found, err := mountID(st)
	if err != nil {
		return err
	}
	if found != m.ID || !isMountRoot(st) {
		return changed("the path of %s leads to mount %d instead of %d", m.Point, found, m.ID)
	}
	return nil
}
