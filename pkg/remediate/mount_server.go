package remediate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	hostholders "github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
)

// serverDead returns the sign by which a mount shows that nobody serves it any more; empty when its server lives.
// Silence is no sign: a server may be slow, and what it has not written yet would be lost. It is a Refusal, as is
// whatever makes it impossible to know.
func serverDead(ctx context.Context, t Tools, m mutate.Mount) (sign string, err error) {
	if t.Host.Prober.Do == nil {
		return "", mutate.Refusal{Why: fmt.Sprintf("%s: there is no way to ask whether its server lives", m.Point)}
	}
	patience := t.timeouts.forServer()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := t.Host.Prober.Do(limited, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: m.Point})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && limited.Err() != nil:
		return "", mutate.Refusal{Why: fmt.Sprintf("%s (%s %s) is silent, but not proven dead: no answer within %s",
			m.Point, m.FSType, m.Source, patience)}
	case err != nil:
		return "", mutate.Refusal{Why: fmt.Sprintf("%s: whether its server lives cannot be told: %v", m.Point, err)}
	}
	// All else (a stale handle, a timeout, a refused connection) comes from a server or a network that may come back.
	hard := []syscall.Errno{syscall.ENOTCONN, syscall.ESHUTDOWN}
	errno := syscall.Errno(answer.Errno)
	if !slices.Contains(hard, errno) {
		return "", nil
	}
	if kind, _, _ := strings.Cut(m.FSType, "."); kind == "fuse" {
		serves, err := fuseServed(ctx, t, m)
		if err != nil || serves {
			return "", err // servers use such errors too, when they cannot reach what is behind them
		}
	}
	return errno.Error(), nil
}

// fuseServed reports whether a process holds the connection of a FUSE mount.
func fuseServed(ctx context.Context, t Tools, m mutate.Mount) (bool, error) {
	major, minor, _ := strings.Cut(m.Device, ":")
	connection, err := strconv.Atoi(minor)
	if err != nil || major != "0" {
		return false, mutate.Refusal{Why: fmt.Sprintf("%s: its FUSE connection cannot be told from device %q", m.Point,
			m.Device)}
	}
	servers, err := hostholders.FUSEServers(ctx, t.Host, connection)
	if err != nil {
		return false, mutate.Refusal{Why: fmt.Sprintf("%s: whether its FUSE server lives cannot be told: %v", m.Point,
			err)}
	}
	if len(servers) > 0 {
		t.Log.Info("a FUSE mount says that its server is gone, but it is held", "mount", m.Point, "pid", servers[0])
	}
	return len(servers) > 0, nil
}
