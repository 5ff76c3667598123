package actions

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	hostholders "github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
)

// serverDead returns the evidence that the server of a mount is gone, or "" if it is alive. A timeout is no evidence: a
// server may be slow, and unwritten data would be lost. A timeout, and any other unknown state, is a Refusal.
func serverDead(ctx context.Context, t Tools, m mutate.Mount) (evidence string, err error) {
	if t.Host.Prober.Do == nil {
		return "", mutate.Refusal{Why: fmt.Sprintf("%s: there is no prober to check whether its server is alive",
			m.Point)}
	}
	patience := cmp.Or(t.ServerTimeout, 5*time.Second)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := t.Host.Prober.Do(limited, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: m.Point})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && limited.Err() != nil:
		return "", mutate.Refusal{Why: fmt.Sprintf("%s (%s %s) does not answer within %s, but its server is not "+
			"proven to be gone",
			m.Point, m.FSType, m.Source, patience)}
	case err != nil:
		return "", mutate.Refusal{Why: fmt.Sprintf("%s: whether its server is alive is not known: %v", m.Point, err)}
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
		return false, mutate.Refusal{Why: fmt.Sprintf("%s: device %q is not that of a FUSE connection", m.Point,
			m.Device)}
	}
	servers, err := hostholders.FUSEServers(ctx, t.Host, connection)
	if err != nil {
		return false, mutate.Refusal{Why: fmt.Sprintf("%s: cannot tell whether its FUSE server is alive: %v", m.Point,
			err)}
	}
	if len(servers) > 0 {
		t.Log.Info("keep a FUSE mount without an answering server: a process holds its connection", "mount", m.Point,
			"pid", servers[0])
	}
	return len(servers) > 0, nil
}
