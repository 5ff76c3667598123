package systemd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A log disk that hangs costs one child process every ten minutes, which waits four seconds, and the check reports no
// fault of the journal until the disk answers again.
func TestJournaldDiskHangs(t *testing.T) {
	root := t.TempDir()
	checktest.WriteFile(t, root, txtar.File{Name: "run/systemd/journal/stdout"})
	checktest.WriteFile(t, root, txtar.File{Name: "etc/machine-id", Data: []byte("0123456789abcdef0123456789abcdef\n")})
	checktest.WriteFile(t, root, txtar.File{Name: "proc/1/stat",
		Data: []byte("1 (init) S 0 1 1 0 -1 0 1 0 0 0 1 1 0 0 20 0 1 0 1 1 1\n")})
	synctest.Test(t, func(t *testing.T) {
		now, asked, hang := hosttest.Now(), 0, true
		h := &host.Host{Files: host.Files{Root: root}, Clock: func() finding.Timestamp { return now }}
		h.Prober.Do = func(ctx context.Context, _ probe.ProbeRequest) (probe.ProbeAnswer, error) {
			asked++
			if hang {
				return hosttest.Hang[probe.ProbeAnswer](ctx)
			}
			return probe.ProbeAnswer{}, nil
		}
		check := Journald()
		expect := func(wantAsked int, blind bool) {
			t.Helper()
			began := time.Now()
			_, err := check.Run(t.Context(), h)
			_, partial := errors.AsType[*finding.PartialError](err)
			if asked != wantAsked || partial != blind || time.Since(began) > journalPatience {
				t.Errorf("asked %d times, want %d; error %v after %s", asked, wantAsked, err, time.Since(began))
			}
			now.SinceBoot += 30 * time.Second
		}
		expect(1, true)
		expect(1, true)
		hang = false
		now.SinceBoot += journalEvery
		expect(3, false)
		expect(3, false)
	})
}
