package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	hostholders "github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/csi"
)

// mountAction unmounts the mounts in the pod's directory, innermost first. A busy mount is reported with its holders
// and left: the process action ends the pod's own processes, others are not touched. An unmount that would propagate to
// mounts outside the pod's directory is refused; see unmount.View.
//
// CSI volumes belong to kubelet and the driver while the driver is alive: it may have to flush data, log out or update
// its state.
func mountAction() Action {
	return Action{
		Kind: object.Mount,
		Plan: func(o object.Assessment, s Settings) (string, string) {
			if o.Facts["table"] == "kubelet" {
				return "", "it is in kubelet's own mount namespace"
			}
			if why := o.Facts["refused"]; why != "" {
				return "", why
			}
			does := fmt.Sprintf("unmount %s (%s)", o.Identity.Mount.Point, o.Identity.Mount.Type)
			if bind := o.Facts["private"]; bind != "" {
				does += fmt.Sprintf(", after %s was made private", bind)
			}
			if csi.IsMount(o) && !s.UnmountCSI {
				does += " if its CSI driver is gone"
			}
			return does, ""
		},
		Less:  innermostFirst,
		Needs: noContainers,
		Look:  ownedByDriver,
		Do:    unmount,
		Verify: func(_ context.Context, t Tools, o object.Assessment) (bool, error) {
			m := mountOf(o)
			mounts, err := mount.Table(t.Host)
			return err == nil && !slices.ContainsFunc(mounts, func(now mount.Mount) bool {
				return now.ID == m.ID && now.Point == m.Point
			}), err
		},
	}
}

// innermostFirst sorts subpath binds before their volumes, deeper mounts before the mounts that contain them, and of
// mounts stacked on one point the upper (newer) before the lower.
func innermostFirst(a, b object.Assessment) int {
	x, y := a.Identity.Mount.Point, b.Identity.Mount.Point
	subpath := func(o object.Assessment) int { return rank(o.Facts["plugin"] == "subpath") }
	return cmp.Or(cmp.Compare(subpath(a), subpath(b)),
		cmp.Compare(strings.Count(y, "/"), strings.Count(x, "/")), cmp.Compare(x, y),
		cmp.Compare(b.Identity.Mount.ID, a.Identity.Mount.ID))
}

// noContainers keeps volumes while a container may be running.
func noContainers(_ object.Assessment, rest []object.Assessment, _ Settings) string {
	for _, other := range rest {
		if other.Kind == object.Container && other.Facts["state"] != "EXITED" {
			return fmt.Sprintf("container %s is %s", shortID(other.ID),
				cmp.Or(other.Facts["state"], "in an unknown state"))
		}
	}
	return ""
}

// ownedByDriver returns why the agent must not unmount a CSI mount: its driver is unknown or not proven to be gone.
func ownedByDriver(ctx context.Context, t Tools, o object.Assessment) string {
	if !csi.IsMount(o) || t.Settings.UnmountCSI {
		return ""
	}
	return t.CSI.MountOwned(ctx, o)
}

func unmount(ctx context.Context, t Tools, o object.Assessment) error {
	if why := ownedByDriver(ctx, t, o); why != "" {
		return mutate.Refusal{Why: why}
	}
	m := mountOf(o)
	if mutate.Remote(m.FSType) {
		sign, err := serverDead(ctx, t, m)
		if err != nil {
			return err
		}
		if sign != "" {
			t.Log.Warn("the server of a mount is gone", "mount", m.Point, "why", sign)
			return unmountDead(ctx, t, o, m)
		}
	}
	return heldBy(t.Mutator.Unmount(ctx, o.Pod.UID, m, mutate.Plain), o)
}

// unmountDead unmounts a mount whose server is gone. A forced unmount aborts the requests of the whole filesystem, so
// it must not be mounted anywhere else. Only if no process uses it is it unmounted lazily.
func unmountDead(ctx context.Context, t Tools, o object.Assessment, m mutate.Mount) error {
	uid := o.Pod.UID
	// Requests that waited for the server fail now and release the mount a moment later: also our own probe.
	var err error
	pollErr := Poll(ctx, t.Settings.VerifyWithin, func() (bool, error) {
		err = t.Mutator.Unmount(ctx, uid, m, mutate.Forced)
		return !errors.Is(err, mutate.ErrBusy), nil
	})
	if pollErr != nil || !errors.Is(err, mutate.ErrBusy) {
		return heldBy(cmp.Or(err, pollErr), o)
	}
	others, searchErr := otherUsers(ctx, t, m)
	if searchErr != nil {
		return fmt.Errorf("%w; its users are not known: %w", err, searchErr)
	}
	if len(others) > 0 {
		o.Holders = others
		return heldBy(err, o)
	}
	return t.Mutator.Unmount(ctx, uid, m, mutate.Lazy)
}

// otherUsers finds the processes that use a mount now, except our own children.
func otherUsers(ctx context.Context, t Tools, m mutate.Mount) ([]object.Holder, error) {
	mounts, err := mount.Table(t.Host)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(mounts, func(now mount.Mount) bool { return now.ID == m.ID })
	if at < 0 {
		return nil, fmt.Errorf("mount %d: %w", m.ID, mutate.ErrChanged)
	}
	held, incomplete, err := hostholders.Holders(ctx, t.Host,
		[]hostholders.Holdable{{Path: m.Point, Mount: &mounts[at]}})
	if err == nil && incomplete != "" {
		err = fmt.Errorf("the search for holders is incomplete: %s", incomplete)
	}
	if err != nil {
		return nil, err
	}
	var others []object.Holder
	for _, h := range held[0] {
		stat, err := t.Host.ProcStat(h.PID)
		if err != nil || stat.PPID != os.Getpid() {
			others = append(others, object.Holder{PID: h.PID, Command: h.Comm, How: h.How,
				Pod: object.Pod{UID: h.UID}})
		}
	}
	return others, nil
}

// heldBy adds the processes that keep the mount busy to an error.
func heldBy(err error, o object.Assessment) error {
	if err == nil || !errors.Is(err, mutate.ErrBusy) || len(o.Holders) == 0 {
		return err
	}
	var names []string
	for _, h := range o.Holders {
		owner := cmp.Or(h.Pod.Name, h.Pod.UID, "no pod")
		if h.Pod.Namespace != "" {
			owner = h.Pod.Namespace + "/" + owner
		}
		names = append(names, fmt.Sprintf("%s (%d) of %s: %s", h.Command, h.PID, owner, h.How))
	}
	return fmt.Errorf("%w; held by %s", err, strings.Join(names, ", "))
}

// serverDead returns the evidence that the server of a mount is gone, or "" if it is alive. A timeout is no evidence: a
// server may be slow, and unwritten data would be lost. A timeout, and any other unknown state, is a Refusal.
func serverDead(ctx context.Context, t Tools, m mutate.Mount) (evidence string, err error) {
	if t.Host.Prober.Do == nil {
		return "", refuse("%s: there is no prober to check whether its server is alive", m.Point)
	}
	patience := cmp.Or(t.ServerTimeout, 5*time.Second)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := t.Host.Prober.Do(limited, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: m.Point})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && limited.Err() != nil:
		return "", refuse("%s (%s %s) does not answer within %s, but its server is not proven to be gone", m.Point,
			m.FSType, m.Source, patience)
	case err != nil:
		return "", refuse("%s: whether its server is alive is not known: %v", m.Point, err)
	}
	// Everything else (a stale handle, a timeout, a refused connection) comes from a server or a network that may
	// recover.
	hard := []syscall.Errno{syscall.ENOTCONN, syscall.ESHUTDOWN}
	errno := syscall.Errno(answer.Errno)
	if !slices.Contains(hard, errno) {
		return "", nil
	}
	if kind, _, _ := strings.Cut(m.FSType, "."); kind == "fuse" {
		serves, err := fuseServed(ctx, t, m)
		if err != nil || serves {
			return "", err // servers also return such errors when they cannot reach their backend
		}
	}
	return errno.Error(), nil
}

// fuseServed reports whether a process holds the connection of a FUSE mount.
func fuseServed(ctx context.Context, t Tools, m mutate.Mount) (bool, error) {
	major, minor, _ := strings.Cut(m.Device, ":")
	connection, err := strconv.Atoi(minor)
	if err != nil || major != "0" {
		return false, refuse("%s: device %q is not that of a FUSE connection", m.Point, m.Device)
	}
	servers, err := hostholders.FUSEServers(ctx, t.Host, connection)
	if err != nil {
		return false, refuse("%s: cannot tell whether its FUSE server is alive: %v", m.Point, err)
	}
	if len(servers) > 0 {
		t.Log.Info("keep a FUSE mount without an answering server: a process holds its connection", "mount", m.Point,
			"pid", servers[0])
	}
	return len(servers) > 0, nil
}
