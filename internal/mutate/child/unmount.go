package child

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/files"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/unmount"
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

// SameMount reports whether a mount in a mount table is the inspected one, apart from its ID.
func SameMount(now mountinfo.Mount, inspected Mount) bool {
	return now.Device() == inspected.Device && now.Root == inspected.Root &&
		now.Source == inspected.Source && now.FSType == inspected.FSType && now.Point == inspected.Point
}

// unmountOne unmounts one mount. It decides again, from the current mount table, whether that stays within the pod's
// directory, makes the parent mount private if needed, and compares the table afterwards.
func unmountOne(r Request) ([]string, error) {
	return unmountAndCheck(r, ownTable)
}

// ownTable returns the mount table of this process.
func ownTable() ([]mountinfo.Mount, error) {
	var reader *mountinfo.Reader // reads the whole table
	return mountinfo.OfProcess(files.Tree{}, unix.Getpid(), reader.ReadOther)
}

// unmountAndCheck is unmountOne with any source of the mount table.
func unmountAndCheck(r Request, table func() ([]mountinfo.Mount, error)) ([]string, error) {
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
		return notes, Harm{fmt.Sprintf("%s was unmounted; whether other mounts are gone too is not known: %v", m.Point,
			err)}
	}
	more, err := checkEffects(before, later, m, plan)
	return append(notes, more...), err
}

// confine ensures that the unmount of m has no effect outside of the pod's directory.
func confine(r Request, view unmount.View, m mountinfo.Mount, table func() ([]mountinfo.Mount, error)) (
	plan unmount.Plan, notes []string, err error,
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
		return plan, notes, Refuse("%s: %s", m.Point, plan.Refused)
	case plan.Private != nil:
		return plan, notes, Refuse("%s: %s is still shared", m.Point, plan.Private.Point)
	}
	return plan, notes, nil
}

// checkEffects reports which other mounts are gone after an unmount.
func checkEffects(before unmount.View, later []mountinfo.Mount, m mountinfo.Mount, plan unmount.Plan) (notes []string,
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
		return notes, Harm{fmt.Sprintf(
			"the unmount of %s removed %d other mounts, the first is %s",
			m.Point, len(lost), unmount.Effect{Mount: lost[0]})}
	}
	return notes, nil
}

// unmountAt opens the parent directory of the mount point without following links, enters it, checks that the name in
// it is this mount, and unmounts it by that name.
func unmountAt(r Request, m mountinfo.Mount) error {
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
func makePrivate(r Request, m mountinfo.Mount) error {
	dir, name, err := openMountParent(r, m)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := OpenBelow(dir, name, unix.O_PATH, ResolveBeneath)
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
func viewMounts(r Request, table func() ([]mountinfo.Mount, error)) (unmount.View, mountinfo.Mount, error) {
	mounts, err := table()
	if err != nil {
		return unmount.View{}, mountinfo.Mount{}, err
	}
	m, err := pickMount(mounts, r.Mount)
	if err != nil {
		return unmount.View{}, m, err
	}
	base, err := OpenBase(r.Base)
	if err != nil {
		return unmount.View{}, m, err
	}
	defer unix.Close(base)
	real, err := realPath(base)
	if err != nil {
		return unmount.View{}, m, err
	}
	pods, err := files.Tree{}.List(real)
	return unmount.View{Mounts: mounts, PodsDir: real, Pods: pods}, m, err
}

// otherNamespaces returns the mount tables of all other namespaces with processes, or none if the parent mount of m is
// not shared.
func otherNamespaces(mounts []mountinfo.Mount, m mountinfo.Mount) ([]unmount.Namespace, error) {
	if !slices.ContainsFunc(mounts, func(p mountinfo.Mount) bool { return p.ID == m.Parent && p.Shared != 0 }) {
		return nil, nil
	}
	return unmount.OtherNamespaces(files.Tree{}, nil)
}

// pickMount finds the inspected mount in a mount table.
func pickMount(mounts []mountinfo.Mount, inspected Mount) (mountinfo.Mount, error) {
	at := slices.IndexFunc(mounts, func(m mountinfo.Mount) bool { return m.ID == inspected.ID })
	if at < 0 {
		return mountinfo.Mount{}, ErrGone
	}
	m := mounts[at]
	if !SameMount(m, inspected) {
		return m, Changed("mount %d is %s of device %s on %s", m.ID, m.FSType, m.Device(), m.Point)
	}
	if child, ok := childOf(mounts, m); ok && child.Point == m.Point {
		return m, fmt.Errorf("%s: mount %d is on top of it: %w", m.Point, child.ID, unix.EBUSY)
	}
	return m, nil
}

// childOf returns a child mount of m, preferably one that covers it.
func childOf(mounts []mountinfo.Mount, m mountinfo.Mount) (child mountinfo.Mount, ok bool) {
	for _, c := range mounts {
		if c.Parent == m.ID && c.ID != m.ID && (!ok || c.Point == m.Point) {
			child, ok = c, true
		}
	}
	return child, ok
}

// openMountParent opens the parent directory of a mount point, which must be below the pod's own directory.
func openMountParent(r Request, m mountinfo.Mount) (dir int, name string, err error) {
	base, err := OpenBase(r.Base)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(base)
	real, err := realPath(base)
	if err != nil {
		return -1, "", err
	}
	rest, ok := strings.CutPrefix(m.Point, path.Join(real, r.UID)+"/")
	if !ok || !IsLocal(r.UID) || strings.Contains(r.UID, "/") || !IsLocal(rest) {
		return -1, "", Refuse("%s is not below the directory of pod %s", m.Point, r.UID)
	}
	parent, name := path.Split(path.Join(r.UID, rest))
	// Mounts may be nested, so resolving the path may cross some: the caller checks the result.
	dir, err = OpenBelow(base, path.Clean(parent), unix.O_PATH|unix.O_DIRECTORY, ResolveBeneath)
	return dir, name, err
}

// isMount checks that name is the root of this mount.
func isMount(dir int, name string, m mountinfo.Mount) error {
	st, err := StatAt(dir, name)
	if err != nil {
		return err
	}
	found, err := mountID(st)
	if err != nil {
		return err
	}
	if found != m.ID || !isMountRoot(st) {
		return Changed("the path of %s leads to mount %d instead of %d", m.Point, found, m.ID)
	}
	return nil
}
