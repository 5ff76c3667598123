package release

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
	missing := func(name string, known bool) string {
		if known {
			return ""
		}
		return name
	}
	i, name := o.Identity, ""
	switch o.Kind {
	case object.Sandbox, object.Container, object.ContainerdContainer, object.Lease:
		name = missing("id", i.Runtime.ID != "")
	case object.Process, object.Shim:
		name = cmp.Or(missing("pid", i.Process.PID != 0), missing("startTime", i.Process.StartTime != 0))
	case object.Mount:
		name = missing("id", i.Mount.ID != 0)
	case object.Link:
		name = cmp.Or(missing("index", i.Link.Index != 0), missing("peerIndex", i.Link.PeerIndex != 0))
	case object.Netns:
		name = missing("inode", i.File.Inode != 0)
	case object.SystemdUnit: // its name is its identity
	case object.CNIAttachment:
		name = cmp.Or(missing("inode", i.File.Inode != 0), missing("size", i.File.Size != 0),
			missing("device", i.File.Device != ""))
	default:
		name = cmp.Or(missing("inode", i.File.Inode != 0), missing("device", i.File.Device != ""))
	}
	if name != "" {
		return fmt.Errorf("%s %s: identity %s is 0", o.Kind, o.ID, name)
	}
	return nil
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
