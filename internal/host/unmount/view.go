// Package unmount predicts the effects of an unmount in a pod's directory, and decides how to confine them to it.
package unmount

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
	"github.com/nodeagent/nodeagent/internal/host/naming"
)

// Mount is one line of a mount table.
type Mount = mountinfo.Mount

// View is the information needed to predict the effects of an unmount in a pod's directory.
type View struct {
	Mounts  []Mount // the table of the planned unmount: the host's
	Others  []Namespace
	PodsDir string   // kubelet's directory of pods, without symbolic links
	Pods    []string // the names in it
}

// Namespace is the mount table of another namespace than the host's.
type Namespace struct {
	PID    int // a process in it
	Mounts []Mount
}

// Effect is a mount that the kernel unmounts together with another one.
type Effect struct {
	Mount
	PID int // a process in its namespace; 0 for the host's
}

// Plan is how to unmount a mount without any effect outside of the directory of its pod.
type Plan struct {
	Refused string // why it must not be unmounted; empty: it may be
	Private *Mount // to be made private first, with all below it; nil: none
	// copies that go with it: the same directory of the same pod, under another name or in another namespace
	Along []Effect
}

// Unmount decides how to unmount the mount with the given ID, which must belong to the pod uid. It is pure.
//
// The kernel repeats the unmount of a mount M, whose parent is P, below all peers and slaves of P, and their peers and
// slaves, at the same directory of the filesystem, whatever is mounted there. So P's propagation counts, not M's. A
// bind that kubelet made of a directory on a shared mount (subPath, local volume) is that mount's peer: later mounts at
// its source appear below it too, and their unmount there would be repeated at the source. Such a bind is made private
// first, which affects no other user. The mount around the pod's directory cannot be made private; there, only copies
// of M in that directory may go along, as they do when kubelet unmounts.
func (v View) Unmount(uid string, id int) Plan {
	chain, around, refused := v.chain(uid, id)
	if refused != "" {
		return Plan{Refused: refused}
	}
	m := chain[0]
	for _, c := range chain {
		if pod := v.OtherPod(uid, c); pod != "" {
			return Plan{Refused: fmt.Sprintf("mount %d on %s carries the UID of pod %s", c.ID, c.Point, pod)}
		}
	}
	if foreign, pod := v.foreignBelow(uid, m); pod != "" {
		return Plan{Refused: fmt.Sprintf("mount %d on %s of pod %s lies below it", foreign.ID, foreign.Point,
			pod)}
	}
	if len(chain) > 1 && chain[1].Shared != 0 {
		if private := v.privatize(chain); private != nil {
			if foreign, pod := v.foreignBelow(uid, *private); pod != "" {
				return Plan{Refused: fmt.Sprintf("%s would have to be made private, and mount %d on %s of pod "+
					"%s lies below it",
					private.Point, foreign.ID, foreign.Point, pod)}
			}
			return Plan{Private: private}
		}
	}
	plan := Plan{}
	for _, effect := range v.Effects(m) {
		if !v.harmless(uid, m, around, effect) {
			return Plan{Refused: "its unmount would also take away " + effect.String()}
		}
		plan.Along = append(plan.Along, effect)
	}
	return plan
}

// String describes a mount that would go too.
func (e Effect) String() string {
	text := fmt.Sprintf("mount %d (%s %s) on %s", e.ID, e.FSType, e.Source, e.Point)
	if e.PID != 0 {
		text += fmt.Sprintf(" in the mount namespace of process %d", e.PID)
	}
	return text
}

// Peer returns a mount outside of the pod's directory that exchanges unmounts below it with m.
func (v View) Peer(uid string, m Mount) (Mount, bool) {
	for _, other := range v.Mounts {
		if m.Shared != 0 && other.Shared == m.Shared && !naming.Below(other.Point, path.Join(v.PodsDir, uid)) {
			return other, true
		}
	}
	return Mount{}, false
}

// chain returns a mount and those under it in the pod's directory, and the mount around that directory.
func (v View) chain(uid string, id int) (chain []Mount, around Mount, refused string) {
	byID := make(map[int]Mount, len(v.Mounts))
	for _, m := range v.Mounts {
		byID[m.ID] = m
	}
	m, ok := byID[id]
	dir := path.Join(v.PodsDir, uid)
	if !ok || uid == "" || strings.Contains(uid, "/") || !naming.Below(m.Point, dir) || path.Clean(m.Point) == dir {
		return nil, around, fmt.Sprintf("mount %d on %q is not below the directory of pod %s", id, m.Point, uid)
	}
	for len(chain) <= len(v.Mounts) {
		chain = append(chain, m)
		parent, ok := byID[m.Parent]
		if !ok || parent.ID == m.ID {
			return nil, around, fmt.Sprintf("%s: its parent mount %d cannot be seen", m.Point, m.Parent)
		}
		if !naming.Below(parent.Point, dir) {
			return chain, parent, ""
		}
		m = parent
	}
	return nil, around, fmt.Sprintf("mount %d: the mount table goes round in a circle", id)
}

// privatize returns the outermost of the mounts under the first of chain that can be reached by a path: a mount covered
// by another one on the same point cannot be named. Nil if there is none.
func (v View) privatize(chain []Mount) *Mount {
	for i := len(chain) - 1; i > 0; i-- {
		if !slices.ContainsFunc(v.Mounts, func(on Mount) bool {
			return on.Parent == chain[i].ID && on.ID != on.Parent && on.Point == chain[i].Point
		}) {
			return &chain[i]
		}
	}
	return nil
}

// Effects returns the mounts that the kernel would unmount together with m, as far as the tables show them.
func (v View) Effects(m Mount) []Effect {
	at := slices.IndexFunc(v.Mounts, func(p Mount) bool { return p.ID == m.Parent })
	if at < 0 || v.Mounts[at].Shared == 0 {
		return nil
	}
	parent := v.Mounts[at]
	directory := naming.Rebase(m.Point, parent.Point, parent.Root)
	reached := v.reached(parent.Shared)
	var effects []Effect
	for _, table := range v.tables() {
		points := make(map[int]string) // by ID of the surrounding mount: the point of its copy of m
		for _, t := range table.Mounts {
			if receives(t, reached) && t.ID != parent.ID && t.Device() == parent.Device() && naming.Below(directory, t.Root) {
				points[t.ID] = naming.Rebase(directory, t.Root, t.Point)
			}
		}
		for _, c := range table.Mounts {
			if point, ok := points[c.Parent]; ok && c.Point == point && c.ID != c.Parent {
				effects = append(effects, Effect{Mount: c, PID: table.PID})
			}
		}
	}
	return effects
}

// tables returns all tables, the host's first.
func (v View) tables() []Namespace {
	return append([]Namespace{{Mounts: v.Mounts}}, v.Others...)
}

// reached returns the peer groups to which an unmount below a member of one group propagates.
func (v View) reached(group int) map[int]bool {
	reached := map[int]bool{group: true}
	for grown := true; grown; {
		grown = false
		for _, table := range v.tables() {
			for _, t := range table.Mounts {
				if t.Shared != 0 && !reached[t.Shared] && receives(t, reached) {
					reached[t.Shared], grown = true, true
				}
			}
		}
	}
	return reached
}

// receives reports whether changes below the members of groups propagate to m.
func receives(m Mount, groups map[int]bool) bool {
	return groups[m.Shared] || groups[m.Master] || groups[m.PropagateFrom]
}

// harmless reports whether a mount may go together with m: it must be a copy of it, and in the host's namespace only in
// the pod's directory, even if seen under another name (kubelet's root may be a bind of a directory on a data disk).
func (v View) harmless(uid string, m, around Mount, effect Effect) bool {
	same := effect.Device() == m.Device() && effect.Root == m.Root
	dir := path.Join(v.PodsDir, uid)
	switch {
	case !same:
		return false
	case effect.PID != 0:
		return true
	case naming.Below(effect.Point, dir):
		return v.OtherPod(uid, effect.Mount) == ""
	case around.ID != m.Parent || v.otherPodIn(uid, effect.Point) != "":
		return false
	}
	// The alias shows all of the pod's directory if its mount begins at that directory or above.
	alias := slices.IndexFunc(v.Mounts, func(t Mount) bool { return t.ID == effect.Parent })
	return alias >= 0 && naming.Below(naming.Rebase(dir, around.Point, around.Root), v.Mounts[alias].Root)
}

// foreignBelow finds a mount of another pod below one.
func (v View) foreignBelow(uid string, m Mount) (Mount, string) {
	below := map[int]bool{m.ID: true}
	for grown := true; grown; { // a child may precede its parent
		grown = false
		for _, c := range v.Mounts {
			if below[c.Parent] && !below[c.ID] {
				below[c.ID], grown = true, true
				if pod := v.OtherPod(uid, c); pod != "" {
					return c, pod
				}
			}
		}
	}
	return Mount{}, ""
}

// OtherPod returns the UID of another pod than uid in the point or source of a mount in the directory of uid; empty if
// there is none. Such a mount is never a leftover of uid.
func (v View) OtherPod(uid string, m Mount) string {
	below := strings.TrimPrefix(m.Point, path.Join(v.PodsDir, uid)+"/")
	names := naming.SplitPath(below)
	if below != m.Point {
		names = slices.Delete(names, 0, volumeNames(names))
	}
	for _, name := range names {
		if name != uid && (naming.IsPodUID(name) || slices.Contains(v.Pods, name)) {
			return name
		}
	}
	if pod := v.otherPodIn(uid, m.Root); pod != "" {
		return pod
	}
	return v.otherPodIn(uid, m.Source)
}

// volumeNames returns how many names of a path in a pod's directory end with that of a volume, which may look like a
// UID: volumes/<plugin>/<volume>, volume-subpaths/<volume>.
func volumeNames(names []string) int {
	switch {
	case len(names) >= 3 && names[0] == "volumes":
		return 3
	case len(names) >= 2 && names[0] == "volume-subpaths":
		return 2
	}
	return 0
}

// otherPodIn is OtherPod for any path. Disks and volumes have UUIDs as names too, so a UUID counts only where kubelet
// has those of pods, or if there is such a pod.
func (v View) otherPodIn(uid, name string) string {
	names := naming.SplitPath(name)
	for i, name := range names {
		known, below := slices.Contains(v.Pods, name), i > 0 && names[i-1] == "pods"
		if name != uid && (naming.IsPodUID(name) && (known || below) || known && below) {
			return name
		}
	}
	return ""
}

// Vanished compares a later mount table with that of the view, after m was unmounted. Other missing mounts that are
// related to m (its peer, master or slave, or at the same directory of a peer of m's parent) are lost: they went
// because of m. The rest went for other reasons. planned are mounts that were expected to go along.
func (v View) Vanished(later []Mount, m Mount, planned []Effect) (lost, unrelated []Mount) {
	still := make(map[int]Mount, len(later))
	for _, now := range later {
		still[now.ID] = now
	}
	effects := v.Effects(m)
	for _, before := range v.Mounts {
		now, ok := still[before.ID]
		isBefore := func(e Effect) bool { return e.PID == 0 && e.ID == before.ID }
		switch {
		case before.ID == m.ID, ok && sameFilesystem(now, before), slices.ContainsFunc(planned, isBefore):
		case related(before, m), slices.ContainsFunc(effects, isBefore):
			lost = append(lost, before)
		default:
			unrelated = append(unrelated, before)
		}
	}
	return lost, unrelated
}

func sameFilesystem(a, b Mount) bool {
	return a.Device() == b.Device() && a.Root == b.Root && a.FSType == b.FSType && a.Source == b.Source
}

// related reports whether two mounts share a peer group, or one is a slave of the other's.
func related(a, b Mount) bool {
	groups := map[int]bool{b.Shared: true, b.Master: true}
	delete(groups, 0)
	return groups[a.Shared] || groups[a.Master]
}
