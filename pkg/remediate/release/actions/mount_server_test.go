package actions

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
)

// The error of the mount and the holders of its connection decide together.
func TestServerDead(t *testing.T) {
	answer := func(errno syscall.Errno) func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error) {
		return func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error) {
			return probe.ProbeAnswer{Errno: int(errno)}, nil
		}
	}
	held := func(t *testing.T, root, name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		fsType string
		probe  func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error)
		files  map[string]string
		dead   bool
		refuse string
	}{
		"NFS, answers":                   {fsType: "nfs4", probe: answer(0)},
		"NFS, timeout of a soft mount":   {fsType: "nfs4", probe: answer(syscall.ETIMEDOUT)},
		"NFS, nobody at the port":        {fsType: "nfs4", probe: answer(syscall.ECONNREFUSED)},
		"NFS, no way to the host":        {fsType: "nfs4", probe: answer(syscall.EHOSTUNREACH)},
		"CIFS, host is down":             {fsType: "cifs", probe: answer(syscall.EHOSTDOWN)},
		"NFS, another export":            {fsType: "nfs4", probe: answer(syscall.ESTALE)},
		"CephFS, the client was evicted": {fsType: "ceph", probe: answer(syscall.ESHUTDOWN), dead: true},
		"FUSE, nobody holds it":          {fsType: "fuse.x", probe: answer(syscall.ENOTCONN), dead: true},
		"FUSE, its users cannot be read": {
			fsType: "fuse.x", probe: answer(syscall.ENOTCONN), files: map[string]string{"proc/7/task/7/fd": ""},
			refuse: "cannot tell",
		},
		"cannot be asked": {fsType: "nfs4", refuse: "no prober"},
		"too many hang": {
			fsType: "nfs4", refuse: "not known",
			probe: func(context.Context, probe.ProbeRequest) (probe.ProbeAnswer, error) {
				return probe.ProbeAnswer{}, probe.ErrTooManyAbandoned
			},
		},
		"NFS, silent": {
			fsType: "nfs4", refuse: "not proven to be gone",
			probe: func(ctx context.Context, _ probe.ProbeRequest) (probe.ProbeAnswer, error) {
				<-ctx.Done()
				return probe.ProbeAnswer{}, ctx.Err()
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			held(t, root, "proc/6/comm", "")
			for file, content := range test.files {
				held(t, root, file, content)
			}
			tools := Tools{
				Host:          &host.Host{Files: host.Files{Root: root}, Prober: probe.Prober{Do: test.probe}},
				Log:           slog.New(slog.DiscardHandler),
				ServerTimeout: 10 * time.Millisecond,
			}
			sign, err := serverDead(t.Context(), tools, mutate.Mount{FSType: test.fsType, Device: "0:45", Point: "/x"})
			var refusal mutate.Refusal
			if (sign != "") != test.dead || errors.As(err, &refusal) != (test.refuse != "") ||
				!strings.Contains(refusal.Why, test.refuse) {
				t.Errorf("sign %q, error %v; want dead %v, refused %q", sign, err, test.dead, test.refuse)
			}
		})
	}
}
