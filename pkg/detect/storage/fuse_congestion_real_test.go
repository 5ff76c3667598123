package storage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A daemon does not answer: all its clients wait, and the kernel counts them; when it is gone, none does.
func TestRealFUSECongestion(t *testing.T) {
	dir := hosttest.HangingFUSE(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys/fs/fuse"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{fuseConnections: hosttest.FUSEControl(t), "/proc": "/proc"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	h := &host.Host{Files: host.Files{Root: root}, Paths: host.Paths{InitPID: os.Getpid()}, Clock: host.Now}
	check := FUSECongestion(DefaultFUSECongestionSettings())
	congestion := func() *finding.Finding {
		findings, err := check.Run(t.Context(), h)
		if _, none := errors.AsType[*finding.NotApplicableError](err); err != nil && !none {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(findings, func(f finding.Finding) bool { return f.Subject.Name == dir }); i >= 0 {
			return &findings[i]
		}
		return nil
	}
	if f := congestion(); f != nil {
		t.Errorf("before: %+v", f)
	}
	requests := slices.Repeat([]probe.ProbeRequest{{Op: probe.ProbeStatfs, Path: dir}}, 16)
	ended := probe.NewProber().All(t.Context(), 100*time.Millisecond, requests)[0].Ended
	if f := congestion(); f == nil || f.Facts["waiting"] < "16" || f.Facts["maxBackground"] != "12" || f.BelowRaise {
		t.Errorf("while 16 wait: %+v", f)
	}
	hosttest.AbortFUSE(t, dir)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the probe did not end")
	}
	if f := congestion(); f != nil {
		t.Errorf("after: %+v", f)
	}
}
