package npd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	hostkmsg "github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	deadlock    = "npd-kernel-kernel-deadlock"
	readonly    = "npd-kernel-readonly-filesystem"
	hungLine    = "task docker:123 blocked for more than 120 seconds."
	roLine      = "EXT4-fs (sda1): Remounting filesystem read-only"
	oomLine     = "Killed process 7 (x) total-vm:1kB"
	hungRaised  = "raised DockerHung " + hungLine
	hungCleared = "cleared DockerHung " + hungLine
)

func bubble(t *testing.T, name string, test func(t *testing.T, h *host.Host, k *kmsg)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := madeUp()
			test(t, h, &kmsg{up: func() time.Duration { return h.Clock().SinceBoot }})
		})
	})
}

func TestKernelLog(t *testing.T) {
	files := []File{mustDecode(t, "/etc/npd/kernel.json", kernelMonitor)}

	bubble(t, "healthy is proven", func(t *testing.T, h *host.Host, k *kmsg) {
		w := run(t, files, DefaultSettings(), Deps{Host: h}, nil, nil) // the log has no reader
		time.Sleep(10 * time.Second)
		w.expect(t)
		if s := w.status(deadlock); s != finding.StatusUnknown {
			t.Errorf("unread it is %s", s)
		}
		w.stop()
		w = run(t, files, DefaultSettings(), Deps{Host: h}, k, nil)
		w.expect(t)
		if s := w.status(deadlock); s != finding.StatusHealthy {
			t.Errorf("read it is %s", s)
		}
		w.stop()
	})

	bubble(t, "permanent and temporary", func(t *testing.T, h *host.Host, k *kmsg) {
		w := run(t, files, DefaultSettings(), Deps{Host: h}, k, nil)
		w.expect(t)
		k.says("nothing")
		w.expect(t)
		k.says(hungLine)
		w.expect(t, hungRaised)
		k.says(strings.Replace(hungLine, "120", "240", 1)) // the same reason: reported already
		w.expect(t)
		k.says(oomLine)
		k.says(oomLine)
		w.expect(t, "raised OOMKilling "+oomLine, "raised OOMKilling "+oomLine)
		if s := w.status(deadlock); s != finding.StatusFaulty {
			t.Errorf("it is %s", s)
		}
		time.Sleep(20 * time.Minute) // one-shot findings expire without a report
		w.expect(t)
		k.says("docker is back")
		w.expect(t, hungCleared)
		w.stop()
	})

	bubble(t, "expiry", func(t *testing.T, h *host.Host, k *kmsg) {
		w := run(t, files, DefaultSettings(), Deps{Host: h}, k, nil)
		k.says(hungLine)
		w.expect(t, hungRaised)
		time.Sleep(59 * time.Minute)
		k.says(hungLine)
		time.Sleep(59 * time.Minute)
		w.expect(t)
		time.Sleep(2 * time.Minute)
		w.expect(t, hungCleared)
		k.says(roLine) // has none
		w.expect(t, "raised FilesystemIsReadOnly "+roLine)
		time.Sleep(100 * time.Hour)
		w.expect(t)
		w.stop()
	})

	bubble(t, "lookback", func(t *testing.T, h *host.Host, k *kmsg) {
		k.says(hungLine)
		time.Sleep(6 * time.Minute)
		k.says(oomLine)
		w := run(t, files, DefaultSettings(), Deps{Host: h}, k, nil)
		w.expect(t, "raised OOMKilling "+oomLine)
		w.stop()
	})

	bubble(t, "programs", func(t *testing.T, h *host.Host, k *kmsg) {
		w := run(t, files, DefaultSettings(), Deps{Host: h}, k, nil)
		k.record(hostkmsg.KernelRecord{Text: oomLine, Facility: 1})
		w.expect(t, "raised OOMKilling "+oomLine)
		w.stop()
		s := DefaultSettings()
		s.KernelOnly = true
		w = run(t, files, s, Deps{Host: h}, &kmsg{up: k.up}, nil)
		k.record(hostkmsg.KernelRecord{Text: oomLine, Facility: 1})
		w.expect(t)
		w.stop()
	})
}

// After a restart no line is reported twice, lines from the time without an agent are not missed, and existing problems
// stay.
func TestRestart(t *testing.T) {
	files := []File{mustDecode(t, "/etc/npd/kernel.json", kernelMonitor)}
	for _, orderly := range []bool{true, false} {
		bubble(t, fmt.Sprintf("orderly %v", orderly), func(t *testing.T, h *host.Host, k *kmsg) {
			m := &memoryStore{}
			w := run(t, files, DefaultSettings(), Deps{Host: h, Memory: m}, k, nil)
			k.says(hungLine)
			k.says(oomLine)
			w.expect(t, hungRaised, "raised OOMKilling "+oomLine)
			crashed := m.kept
			w.stop()
			if !orderly {
				m = &memoryStore{kept: crashed}
			}
			k.says(roLine)
			time.Sleep(time.Hour / 2) // longer than the lookback
			k.says("nothing")

			w = run(t, files, DefaultSettings(), Deps{Host: h, Memory: m}, k, w.tracker.State())
			w.expect(t, "raised FilesystemIsReadOnly "+roLine)
			if s := w.status(deadlock); s != finding.StatusFaulty {
				t.Errorf("it is %s", s)
			}
			w.stop()
		})
	}
	bubble(t, "another boot", func(t *testing.T, h *host.Host, k *kmsg) {
		m := &memoryStore{}
		w := run(t, files, DefaultSettings(), Deps{Host: h, Memory: m}, k, nil)
		k.says(hungLine)
		w.expect(t, hungRaised)
		w.stop()
		clock := h.Clock
		h.Clock = func() finding.Timestamp { s := clock(); s.Boot = "next"; return s }
		w = run(t, files, DefaultSettings(), Deps{Host: h, Memory: m}, &kmsg{up: k.up}, w.tracker.State())
		w.expect(t, hungCleared)
		w.stop()
	})
}

// A condition that a native check reads from state ends when that check says so, and not before.
func TestOwnState(t *testing.T) {
	files := []File{mustDecode(t, "/etc/npd/kernel.json", kernelMonitor)}
	own := []detect.Check{{ID: "filesystem-readonly", Condition: finding.Condition{Type: "ReadonlyFilesystem",
		ReadyType: "StorageReady"}}}
	bubble(t, "state", func(t *testing.T, h *host.Host, k *kmsg) {
		var believed atomic.Pointer[finding.CheckState]
		believed.Store(&finding.CheckState{Status: finding.StatusUnknown})
		d := Deps{Host: h, Own: own, Believed: func(string) (finding.CheckState, bool) {
			return *believed.Load(), true
		}}
		w := run(t, files, DefaultSettings(), d, k, nil)
		healthy := finding.CheckState{Status: finding.StatusHealthy, Conclusive: h.Clock()}
		k.says(roLine)
		w.expect(t, "raised FilesystemIsReadOnly "+roLine)
		for what, state := range map[string]finding.CheckState{
			"observed before the line": healthy,
			"could not tell":           {Status: finding.StatusHealthy, Conclusive: h.Clock(), Err: "no"},
			"sees it too": {Status: finding.StatusFaulty, Conclusive: finding.Timestamp{Boot: "boot",
				SinceBoot: 100 * time.Hour}},
			"sees something": {Status: finding.StatusHealthy, Conclusive: finding.Timestamp{Boot: "boot",
				SinceBoot: 100 * time.Hour},
				Subjects: map[string]*finding.Believed{"x": {Raised: h.Clock()}}},
		} {
			believed.Store(&state)
			time.Sleep(2 * time.Minute)
			t.Log(what)
			w.expect(t)
		}
		believed.Store(&finding.CheckState{Status: finding.StatusHealthy, Conclusive: h.Clock()})
		time.Sleep(2 * time.Minute)
		w.expect(t, "cleared FilesystemIsReadOnly "+roLine)
		w.stop()

		s := DefaultSettings()
		s.ClearByState = false
		w = run(t, files, s, d, k, nil)
		k.says(roLine)
		w.expect(t, "raised FilesystemIsReadOnly "+roLine)
		believed.Store(&finding.CheckState{Status: finding.StatusHealthy, Conclusive: h.Clock()})
		time.Sleep(2 * time.Minute)
		w.expect(t)
		w.stop()
	})
}

// A storm of lines is cheap, and is counted.
func TestStorm(t *testing.T) {
	files := []File{mustDecode(t, "/etc/npd/kernel.json", kernelMonitor)}
	bubble(t, "storm", func(t *testing.T, h *host.Host, k *kmsg) {
		counted := 0
		w := run(t, files, DefaultSettings(), Deps{Host: h, Happened: func(_ string, n int) { counted += n }}, k, nil)
		w.expect(t)
		for range 20_000 {
			k.says(oomLine)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if reported := len(w.reported); reported != maxMoments || reported+counted != 20_000 {
			t.Errorf("%d reported, %d counted", reported, counted)
		}
		w.stop()
	})
}

const fileMonitor = `{"plugin": "filelog", "logPath": %q, "lookback": "10m", "skipList": [" audit:"],
	"pluginConfig": {"timestamp": "^.{15}", "message": "kernel: (.*)", "timestampFormat": "Jan _2 15:04:05"}, "source": "f",
	"rules": [{"type": "temporary", "reason": "Bad", "pattern": "bad .*"}, {"type": "temporary", "reason": "Two", "pattern": "one\\ntwo"}]}`

func TestFileLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "kern.log")
	file := mustDecode(t, "/etc/npd/file.json", fmt.Sprintf(fileMonitor, log))
	add := func(lines ...string) {
		out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for _, line := range lines {
			fmt.Fprintln(out, time.Now().Format("Jan _2 15:04:05"), line)
		}
	}
	bubble(t, "file", func(t *testing.T, h *host.Host, _ *kmsg) {
		m := &memoryStore{}
		w := run(t, []File{file}, DefaultSettings(), Deps{Host: h, Memory: m}, nil, nil)
		w.expect(t, "raised SourceLost the agent receives no events of npd-file: open "+log+
			": no such file or directory; faults are found at the checks' intervals only")
		if s := w.status("npd-file"); s != finding.StatusUnknown {
			t.Errorf("without the file it is %s", s)
		}
		add("host kernel: bad old")
		time.Sleep(15 * time.Minute)
		w.stop()
		w.reported = nil
		m = &memoryStore{}
		add("host kernel: bad 1", "host kernel: bad audit: x", "garbage", "host user: bad 3", "host kernel: one",
			"host kernel: two")
		w = run(t, []File{file}, DefaultSettings(), Deps{Host: h, Memory: m}, nil, nil)
		w.expect(t, "raised Bad bad 1", "raised Two one two")
		if s := w.status("npd-file"); s != finding.StatusHealthy {
			t.Errorf("with the file it is %s", s)
		}
		w.stop()
		add("host kernel: bad while away")
		time.Sleep(time.Hour)
		w = run(t, []File{file}, DefaultSettings(), Deps{Host: h, Memory: m}, nil, w.tracker.State())
		w.expect(t, "raised Bad bad while away")
		w.stop()
	})
}

// Times without a year are within the last twelve months, on any day.
func TestTranslate(t *testing.T) {
	tr, err := newTranslator(map[string]string{"timestamp": "^.{15}", "message": "kernel: (.*)",
		"timestampFormat": "Jan _2 15:04:05"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ now, line, want string }{
		{"2026-01-01T00:05:00", "Dec 31 23:59:59 h kernel: x", "2025-12-31T23:59:59 x"},
		{"2026-06-01T00:05:00", "May  1 23:59:59 h kernel: x", "2026-05-01T23:59:59 x"},
		{"2026-06-01T00:05:00", "Jun  1 00:05:03 h kernel: x", "2026-06-01T00:05:03 x"},
		{"2026-06-01T00:05:00", "Foo  1 00:05:03 h kernel: x", "none"},
		{"2026-06-01T00:05:00", "short", "none"},
		{"2026-06-01T00:05:00", "Jun  1 00:05:03 h user: x", "none"},
	} {
		now, _ := time.ParseInLocation("2006-01-02T15:04:05", test.now, time.Local)
		got := "none"
		if at, message, ok := tr.translate(test.line, now); ok {
			got = at.Format("2006-01-02T15:04:05") + " " + message
		}
		if got != test.want {
			t.Errorf("%s at %s: %s, want %s", test.line, test.now, got, test.want)
		}
	}
}

const journalMonitor = `{"plugin": "journald", "pluginConfig": {"source": "systemd"}, "lookback": "5m", "source": "systemd-monitor",
	"rules": [{"type": "temporary", "reason": "KubeletStart", "pattern": "Started kubelet.service.*"}]}`

// FuzzObserve feeds arbitrary lines to a monitor.
func FuzzObserve(f *testing.F) {
	f.Add(hungLine + "\n" + oomLine + "\n\n" + roLine + "\ndocker is back\n\xff\x00")
	file := mustDecode(f, "/etc/npd/kernel.json", kernelMonitor)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := newLogMonitor(file, "npd-kernel", DefaultSettings())
		if err != nil {
			t.Fatal(err)
		}
		m.setReadable(nil)
		for line1 := range strings.SplitSeq(text, "\n") {
			m.observe(line{text: line1, at: time.Second})
		}
		for _, c := range m.checks(native{}) {
			findings, err := c.Run(t.Context(), madeUp())
			for _, finding := range findings {
				finding.Check = c.ID
				if err := finding.Problem(); err != nil {
					t.Error(err)
				}
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
}
