package mutate

import (
	"context"
	"path"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// FileID distinguishes one file or directory from another that takes its name.
type FileID = child.FileID

// EntryType is the file type of an entry.
type EntryType = child.EntryType

// The entry types that the agent distinguishes.
const (
	Directory = child.Directory
	Regular   = child.Regular
	Socket    = child.Socket
	Symlink   = child.Symlink
	Pipe      = child.Pipe
	Other     = child.Other // device
)

// Entry is one file or directory in a pod's directory.
type Entry = child.Entry

// Tree lists everything in a pod's directory, parents before children, without entering any mount. If the directory is
// gone, the list is empty. Tree changes nothing; it is in this package because removal must follow the same rules.
func (d *Mutator) Tree(ctx context.Context, uid string) ([]Entry, error) {
	a, err := d.do(ctx, child.Request{Op: child.OpTree, Base: d.podsDir(), UID: uid})
	return a.Entries, err
}

// Plugins lists kubelet's plugin or plugin registry directory like Tree. Paths are relative to that directory.
func (d *Mutator) Plugins(ctx context.Context, dir string) ([]Entry, error) {
	dir = path.Clean("/" + dir)
	a, err := d.do(ctx, child.Request{Op: child.OpTree, Base: path.Dir(dir), UID: path.Base(dir)})
	return a.Entries, err
}
