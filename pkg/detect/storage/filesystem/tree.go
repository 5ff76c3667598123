package filesystem

import (
	"path"

	"github.com/nodeagent/nodeagent/internal/host/mount"
)

// Tree is a mount table by what lies on what. It is built once for a table: looking through all mounts for each of them
// takes minutes where tens of thousands are stacked.
type Tree struct {
	mounts []mount.Mount
	byID   map[int]int // the index in mounts
	on     map[place][]int
	visits int // how many places were looked at
}

// place is a directory of a mount on which others lie.
type place struct {
	mount int // ID
	point string
}

// NewTree returns the tree of a table.
func NewTree(mounts []mount.Mount) *Tree {
	t := &Tree{mounts: mounts, byID: make(map[int]int, len(mounts)), on: make(map[place][]int, len(mounts))}
	for i, m := range mounts {
		t.byID[m.ID] = i
		at := place{m.Parent, path.Clean(m.Point)}
		t.on[at] = append(t.on[at], i)
	}
	return t
}

// Parent returns the mount that m lies on.
func (t *Tree) Parent(m mount.Mount) (mount.Mount, bool) {
	i, ok := t.byID[m.Parent]
	if !ok {
		return mount.Mount{}, false
	}
	return t.mounts[i], true
}

// Above returns the mounts that the path to m leads through, the nearest first, m itself not among them.
func (t *Tree) Above(m mount.Mount) []mount.Mount {
	var chain []mount.Mount
	seen := map[int]bool{m.ID: true}
	for {
		next, ok := t.Parent(m)
		if !ok || seen[next.ID] { // the root, or a malformed table with a cycle
			return chain
		}
		seen[next.ID] = true
		chain, m = append(chain, next), next
	}
}

// Stacked reports whether another mount lies on m right at its own point.
func (t *Tree) Stacked(m mount.Mount) bool {
	return t.covers(m.ID, path.Clean(m.Point), len(m.Point)+1, map[int]int{m.ID: 0})
}

// Covered reports whether something is mounted over m, or over a directory on the way to it. A path leaves each mount
// on its way at the first mount point that it meets there.
func (t *Tree) Covered(m mount.Mount) bool {
	if t.Stacked(m) { // most of a stack, without the way down to its base
		return true
	}
	// By mount on the way: the length of the path at which it is left for the next one.
	leftAt := map[int]int{m.ID: len(m.Point) + 1}
	below := m
	for _, a := range t.Above(m) {
		leftAt[a.ID], below = len(below.Point), a
	}
	for point := path.Clean(m.Point); ; point = path.Dir(point) {
		for id, end := range leftAt {
			if t.covers(id, point, end, leftAt) {
				return true
			}
		}
		if point == "/" {
			return false
		}
	}
}

// covers reports whether a mount that is not on the way lies on a place, before the path leaves it.
func (t *Tree) covers(id int, point string, end int, onTheWay map[int]int) bool {
	t.visits++
	for _, i := range t.on[place{id, point}] {
		if _, ok := onTheWay[t.mounts[i].ID]; !ok && len(t.mounts[i].Point) < end {
			return true
		}
	}
	return false
}

// reachable returns a mount point of the filesystem that a path really leads to: the principal one if it does.
func (t *Tree) reachable(f Filesystem) (string, bool) {
	for _, m := range append([]mount.Mount{f.Principal}, f.Mounts...) {
		if !t.Covered(m) {
			return m.Point, true
		}
	}
	return "", false
}
