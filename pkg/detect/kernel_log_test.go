package detect

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/detect/kernel"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func newKernelLog(t *testing.T) *kernel.Log {
	t.Helper()
	m, err := kernel.NewMatcher(kernel.Rules())
	if err != nil {
		t.Fatal(err)
	}
	return kernel.NewLog(m)
}

// kernelFindings is what the check says, shortly.
func kernelFindings(t *testing.T, c Check, up time.Duration) (got []string) {
	t.Helper()
	h := &host.Host{NodeName: "node-1", Clock: func() finding.Stamp { return finding.Stamp{Boot: "b", Up: up} }}
	findings, err := c.Run(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		got = append(got, fmt.Sprintf("%s %s %s", f.Severity, f.Reason, f.Subject))
	}
	return got
}

func TestKernelLog(t *testing.T) {
	records := []host.KernelRecord{
		{Time: time.Minute, Text: "Oops: 0000 [#1] PREEMPT SMP NOPTI"},
		{Time: time.Minute, Text: "EXT4-fs error (device sda1): x"},
		{Time: time.Minute, Facility: 1, Text: "Kernel panic - not syncing: written by a program"},
		{Time: 2 * time.Minute, Text: "usb 1-1: new high-speed USB device number 2", Lost: 3},
	}
	log := newKernelLog(t)
	var wakes []string
	source := KernelLogSource(log, func() finding.Stamp { return finding.Stamp{Up: 2 * time.Minute} }, func(_ context.Context, each func(host.KernelRecord)) error {
		for _, r := range records {
			each(r)
		}
		return nil
	})
	all, ext4 := KernelLog(log), Check{Wakes: []Wake{KernelWake("filesystem-readonly")}}
	if _, err := all.Run(t.Context(), &host.Host{Clock: hosttest.Clock}); err == nil {
		t.Error("the check has an answer before anybody read the log")
	}
	err := source.Run(t.Context(), func(text string) {
		wakes = append(wakes, fmt.Sprintf("%.8q %v %v", text, all.wantsWake(WakeKernelLog, text), ext4.wantsWake(WakeKernelLog, text)))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`"Oops: 00" true false`, `"EXT4-fs " true true`, `"\x00kernel-" true false`, `"usb 1-1:" false false`}
	if diff := cmp.Diff(want, wakes); diff != "" {
		t.Errorf("wakes (-want +got):\n%s", diff)
	}
	want = []string{"fatal KernelOops node/node-1", "warning Ext4Error filesystem/sda1", "warning KernelRecordsLost source/kernel-log"}
	if diff := cmp.Diff(want, kernelFindings(t, all, 3*time.Minute)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = []string{"fatal KernelOops node/node-1", "warning KernelRecordsLost source/kernel-log"}
	if diff := cmp.Diff(want, kernelFindings(t, KernelLog(log, "filesystem-readonly"), 3*time.Minute)); diff != "" {
		t.Errorf("left to the check of the state (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"fatal KernelOops node/node-1"}, kernelFindings(t, all, 48*time.Hour)); diff != "" {
		t.Errorf("after two days (-want +got):\n%s", diff)
	}
}

// TestKernelLogWakesTheEngine: a record becomes a look within moments, although the check's interval is a minute.
func TestKernelLogWakesTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newKernelLog(t)
		clock := func() finding.Stamp { return finding.Stamp{Boot: "b", Up: time.Minute} }
		source := KernelLogSource(log, clock, func(ctx context.Context, each func(host.KernelRecord)) error {
			<-time.After(5 * time.Second)
			each(host.KernelRecord{Time: time.Minute, Text: "Kernel panic - not syncing: x"})
			<-ctx.Done()
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var found time.Duration
		e := NewEngine(&host.Host{Clock: clock}, slog.New(slog.DiscardHandler), []Check{KernelLog(log)}, []Source{source}, Observer{}, func(l finding.Look) {
			if l.Check == kernelLogID && len(l.Findings) > 0 && found == 0 {
				found = time.Since(began)
				cancel()
			}
		})
		_ = e.Run(ctx)
		if found < 5*time.Second || found > 5*time.Second+500*time.Millisecond {
			t.Errorf("found after %v", found)
		}
	})
}

// TestRealKernelLog makes a real filesystem fail and hears the real kernel say so, while a program says the same of another.
func TestRealKernelLog(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: reads /dev/kmsg and mounts a filesystem")
	}
	fs := hosttest.NewLoopFS(t, "ext4")
	dir := t.TempDir()
	fs.Mount(dir, "errors=remount-ro")
	log := newKernelLog(t)
	heard, done := make(chan string, 1024), make(chan error, 1) // more than the test causes; what is beyond is not needed
	ctx, stop := context.WithCancel(t.Context())
	source := KernelLogSource(log, host.Now, func(ctx context.Context, each func(host.KernelRecord)) error {
		return host.WatchKernelLog(ctx, slog.New(slog.DiscardHandler), func(r host.KernelRecord) {
			each(r)
			select {
			case heard <- r.Text:
			default:
			}
		})
	})
	go func() { done <- source.Run(ctx, func(string) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// A program writes until it is heard: from then on the source listens.
	say(t, heard, "<3>EXT4-fs error (device forged1): a program wrote this", "forged1")
	fs.TriggerError()
	awaitRecord(t, heard, "Remounting filesystem read-only")
	subject := finding.Subject{Kind: "filesystem", Name: fs.Name()}
	findings, err := KernelLog(log).Run(t.Context(), &host.Host{Clock: host.Now})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(findings, func(f finding.Finding) bool {
		return f.Subject == subject && f.Severity == finding.Fatal && strings.Contains(f.Message, "Ext4Error")
	}) {
		t.Errorf("%s is not reported: %+v", subject, findings)
	}
	for _, f := range findings {
		if f.Subject.Name == "forged1" {
			t.Errorf("a program was believed: %+v", f)
		}
	}
}

// say writes a line to the kernel's log as a program, again and again until it is heard.
func say(t *testing.T, heard <-chan string, line, part string) {
	t.Helper()
	for range 50 {
		if err := os.WriteFile("/dev/kmsg", []byte(line), 0); err != nil {
			t.Fatal(err)
		}
		timeout := time.After(100 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case text := <-heard:
				if strings.Contains(text, part) {
					return
				}
			case <-timeout:
				waiting = false
			}
		}
	}
	t.Fatalf("%q was never heard", line)
}

func awaitRecord(t *testing.T, heard <-chan string, part string) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case text := <-heard:
			if strings.Contains(text, part) {
				return
			}
		case <-timeout:
			t.Fatalf("%q was not heard", part)
		}
	}
}
