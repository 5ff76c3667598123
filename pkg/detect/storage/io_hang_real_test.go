package storage

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A real disk stops answering below kubelet's directory: warning, fatal, and gone when it answers again.
func TestRealDiskHangs(t *testing.T) {
	disk := hosttest.NewHangingDisk(t)
	dir := filepath.Join(t.TempDir(), "kubelet")
	disk.Mount(dir)
	h := &host.Host{Clock: host.Now, Paths: host.Paths{InitPID: os.Getpid(), KubeletRoot: dir}}
	check := IOHang(IOHangSettings{After: 200 * time.Millisecond, FatalAfter: 600 * time.Millisecond})
	name := filepath.Base(disk.Device)
	severity := func() finding.Severity {
		t.Helper()
		findings, err := check.Run(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Subject == deviceSubject(name) {
				t.Log(f.Severity, f.Message)
				return f.Severity
			}
		}
		return ""
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	until := func(want finding.Severity) {
		t.Helper()
		ticks := time.NewTicker(50 * time.Millisecond)
		defer ticks.Stop()
		for severity() != want {
			select {
			case <-ticks.C:
			case <-ctx.Done():
				t.Fatalf("the disk never was %q", want)
			}
		}
	}
	if got := severity(); got != "" {
		t.Fatalf("healthy, but %s", got)
	}
	disk.Hang()
	wrote := make(chan error, 1)
	go func() { wrote <- writeThrough(filepath.Join(dir, "x")) }()
	until(finding.Warning)
	until(finding.Fatal)
	if disk.Waiting() == 0 {
		t.Error("nothing waits for the disk")
	}
	disk.Recover()
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	until("")
}

// writeThrough writes a file to the disk itself.
func writeThrough(name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString("x"); err != nil {
		return err
	}
	return file.Sync()
}
