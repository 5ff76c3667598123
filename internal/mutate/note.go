package mutate

import (
	"context"
	"io/fs"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Note is a small file that root wrote into a pod's directory, with its identity.
type Note = child.Note

// ReadNote reads a file in the directory of the pod uid. The pod may have replaced it with anything: a pipe, a device,
// a link, a mount, an endless file. So a child opens it, beneath the directory, only if it is a regular file that only
// root can have written, and the read is bounded. An error that wraps fs.ErrNotExist means that it does not exist.
func (d *Mutator) ReadNote(ctx context.Context, uid, name string) (Note, error) {
	if name == "" {
		return Note{}, refuse("no name")
	}
	a, err := d.do(ctx, child.Request{Op: child.OpReadNote, Base: d.podsDir(), UID: uid, Path: name})
	if err == nil && a.Outcome == child.OutcomeGone {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return a.Note, err
}
