package discover_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// The runtime is searched for again only when its process is gone.
func TestDaemonsRemembersTheRuntime(t *testing.T) {
	h, asked := hosttest.Host(t, func(h *host.Host) { h.Processes = host.NewProcesses() }), 0
	h.Runtime.Process = func(context.Context) (host.Process, error) {
		asked++
		return host.Process{PID: 800, StartTime: 339, Comm: "containerd"}, nil
	}
	hosttest.WriteStat(t, h, 800, "800 (containerd) S 1"+hosttest.StatTail)
	find := func() []discover.Daemon {
		t.Helper()
		daemons, err := discover.Daemons(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		return daemons
	}
	find()
	if got := find(); asked != 1 || len(got) != 2 || got[0].Role != "kubelet" || got[1].Role != "runtime" ||
		got[1].PID != 800 {
		t.Errorf("asked %d times: %+v", asked, got)
	}
	hosttest.WriteStat(t, h, 800, "800 (containerd) Z 1"+hosttest.StatTail)
	if find(); asked != 2 {
		t.Errorf("asked %d times after the process died", asked)
	}
}

func TestDaemonsErrors(t *testing.T) {
	trouble := errors.New("trouble")
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"not running":     {fmt.Errorf("no kubelet runs: %w", fs.ErrNotExist), false},
		"nobody listens":  {fmt.Errorf("dial: %w", syscall.ECONNREFUSED), false},
		"not configured":  {hosterr.ErrNotConfigured, false},
		"could not tell":  {trouble, true},
		"several of them": {discover.ErrSeveralKubelets, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			h.Kubelet.Process = func() (host.Process, error) { return host.Process{}, test.err }
			daemons, err := discover.Daemons(t.Context(), h)
			if diff := cmp.Diff(1, len(daemons)); diff != "" || (err != nil) != test.want {
				t.Errorf("%+v, %v", daemons, err)
			}
		})
	}
	if daemons, err := discover.Daemons(t.Context(), (&host.Host{})); err != nil || daemons != nil {
		t.Errorf("no clients: %+v, %v", daemons, err)
	}
}
