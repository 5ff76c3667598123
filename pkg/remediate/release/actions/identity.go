package actions

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// identified is an error for an object without a known identity, which is not touched: a lister leaves 0 for a number
// that it does not know.
func identified(o object.Assessment) error {
	i, missing := o.Identity, ""
	switch o.Kind {
	case object.SystemdUnit: // its name is its identity
	case object.Sandbox, object.Container, object.ContainerdContainer, object.Lease:
		missing = zero(i.Runtime.ID, "id")
	case object.Process, object.Shim:
		missing = cmp.Or(zero(i.Process.PID, "pid"), zero(i.Process.StartTime, "startTime"))
	case object.Mount:
		missing = zero(i.Mount.ID, "id")
	case object.Link:
		missing = cmp.Or(zero(i.Link.Index, "index"), zero(i.Link.PeerIndex, "peerIndex"))
	case object.Netns:
		missing = zero(i.File.Inode, "inode")
	case object.CNIAttachment:
		missing = cmp.Or(zero(i.File.Inode, "inode"), zero(i.File.Device, "device"), zero(i.File.Size, "size"))
	default:
		missing = cmp.Or(zero(i.File.Inode, "inode"), zero(i.File.Device, "device"))
	}
	if missing != "" {
		return fmt.Errorf("%s %s: identity %s is 0", o.Kind, o.ID, missing)
	}
	return nil
}

// zero returns the name of a part that is zero.
func zero[T comparable](value T, name string) string {
	if value == *new(T) {
		return name
	}
	return ""
}

// onlyIdentified returns the action for objects with a known identity only.
func onlyIdentified(a Action) Action {
	do, verify := a.Do, a.Verify
	a.Do = func(ctx context.Context, t Tools, o object.Assessment) error {
		if err := identified(o); err != nil {
			return err
		}
		return do(ctx, t, o)
	}
	a.Verify = func(ctx context.Context, t Tools, o object.Assessment) (bool, error) {
		if err := identified(o); err != nil {
			return false, err
		}
		return verify(ctx, t, o)
	}
	return a
}

func processOf(o object.Assessment) mutate.Process {
	return mutate.Process{PID: o.Identity.Process.PID, StartTime: o.Identity.Process.StartTime, UID: o.Pod.UID,
		Driver: o.Facts["driver"]}
}

func mountOf(o object.Assessment) mutate.Mount {
	m := o.Identity.Mount
	return mutate.Mount{ID: m.ID, Device: m.Device, Root: m.Root, Point: m.Point, Source: m.Source, FSType: m.Type}
}

func fileOf(o object.Assessment) mutate.FileID {
	return mutate.FileID{Device: o.Identity.File.Device, Inode: o.Identity.File.Inode}
}
