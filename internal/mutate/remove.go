package mutate

import (
	"context"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// RemoveDir removes one empty directory in the directory of the pod uid; an empty name means that directory itself. It
// never deletes content: ErrBusy if the directory is not empty or is a mount point.
func (d *Mutator) RemoveDir(ctx context.Context, uid, name string, id FileID) error {
	_, err := d.do(ctx, child.Request{Op: child.OpRemoveDir, Base: d.podsDir(), UID: uid, Path: name, File: id})
	return err
}

// RemoveFile removes one regular file in the directory of the pod uid. The caller must know that it is not user data.
func (d *Mutator) RemoveFile(ctx context.Context, uid, name string, id FileID) error {
	if name == "" {
		return refuse("no name")
	}
	_, err := d.do(ctx, child.Request{Op: child.OpRemoveFile, Base: d.podsDir(), UID: uid, Path: name, File: id})
	return err
}
