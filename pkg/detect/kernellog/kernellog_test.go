package kernellog

import (
	"context"
	"errors"
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
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/memory/oomkills"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func testLog(t *testing.T) *Log {
	t.Helper()
	log, err := NewKernelLog(DefaultSettings())
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// witnessing returns sources of checks with these IDs, all of which can read their state.
func witnessing(ids ...string) *detect.StateSources {
	w := &detect.StateSources{}
	var checks []detect.Check
	for _, id := range ids {
		checks = append(checks, detect.Check{ID: id})
	}
	w.Enable(checks)
	return w
}

// kernelFindings returns the findings of the check in short form.
func kernelFindings(t *testing.T, c detect.Check, up time.Duration) (got []string) {
	t.Helper()
	h := &host.Host{NodeName: "node-1", Clock: func() finding.Timestamp {
		return finding.Timestamp{Boot: "b", SinceBoot: up}
	}}
	findings, err := c.Run(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		got = append(got, fmt.Sprintf("%s %s %s", f.Severity, f.Reason, f.Subject))
	}
	return got
}

// kernelSays watches a log that first has kept records, and then live ones.
func kernelSays(kept, live []kmsg.KernelRecord) KernelWatch {
	return func(_ context.Context, _ *slog.Logger, each func(kmsg.KernelRecord), caughtUp func()) error {
		for _, r := range kept {
			each(r)
		}
		caughtUp()
		for _, r := range live {
			each(r)
		}
		return nil
	}
}

func record(sequence uint64, up time.Duration, text string) kmsg.KernelRecord {
	return kmsg.KernelRecord{Sequence: sequence, Up: up, Text: text}
}

func TestKernelLog(t *testing.T) {
	forged := record(3, time.Minute, "Kernel panic - not syncing: written by a program")
	forged.Facility = 1
	fragment := record(4, time.Minute, "Kernel panic - not syncing: the rest of some line")
	fragment.Fragment = true
	late := record(9, 2*time.Minute, "usb 1-1: new high-speed USB device number 2")
	late.Lost = 4
	log := testLog(t)
	var wakes []string
	lost := 0
	source := KernelLogSource(log, slog.New(slog.DiscardHandler), kernelSays(
		[]kmsg.KernelRecord{record(1, time.Minute, "Oops: 0000 [#1] PREEMPT SMP NOPTI")},
		[]kmsg.KernelRecord{record(2, time.Minute, "EXT4-fs error (device sda1): x"), forged, fragment, late},
	), func(records uint64) { lost += int(records) })
	all := New(DefaultSettings(), log, &detect.StateSources{}, nil)
	ext4 := detect.Check{ID: "filesystem-readonly", Wakes: []detect.Wake{checkkit.KernelWake()}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := all.Run(ctx, &host.Host{Clock: hosttest.Clock}); err == nil {
		t.Error("the check has an answer before anybody read the log")
	}
	err := source.Run(t.Context(), func(c detect.Change) {
		wakes = append(wakes, fmt.Sprintf("%.8q %v %v", c.Text, all.WantsWake(detect.WakeKernelLog, c),
			ext4.WantsWake(detect.WakeKernelLog, c)))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`"" true true`, `"EXT4-fs " true true`, `"Kernel p" false false`, `"" true true`,
		`"usb 1-1:" false false`}
	if diff := cmp.Diff(want, wakes); diff != "" {
		t.Errorf("wakes (-want +got):\n%s", diff)
	}
	if lost != 4 {
		t.Errorf("%d records are reported as lost, want 4", lost)
	}
	want = []string{"fatal KernelOops node/node-1", "warning Ext4Error filesystem/sda1",
		"warning KernelRecordsLost source/kernel-log"}
	if diff := cmp.Diff(want, kernelFindings(t, all, 3*time.Minute)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"fatal KernelOops node/node-1"}, kernelFindings(t, all, 48*time.Hour)); diff != "" {
		t.Errorf("after two days (-want +got):\n%s", diff)
	}
}

// TestKernelLogLevels: words that prove no fault by themselves are only reported if the kernel logs them as an error,
// or as a warning with grave words after the machine has started; they are an alarm only if they are dire.
func TestKernelLogLevels(t *testing.T) {
	const (
		reported = "warning NICDriverError device/0000:3b:00.0"
		noticed  = "info NICDriverError device/0000:3b:00.0"
	)
	for _, c := range []struct {
		level int
		up    time.Duration
		text  string
		want  []string
	}{
		{3, time.Hour, "frobnicating the widget failed", []string{noticed}},
		{4, time.Hour, "frobnicating the widget failed", nil},
		{4, time.Hour, "frobnicating the widget failed with -5", []string{noticed}},
		{3, time.Hour, "frobnicating the widget timed out", []string{reported}},
		{3, time.Hour, "frobnicating the widget timed out, its timestamps are disabled", []string{noticed}},
		{4, time.Hour, "frobnicating the widget timed out", []string{reported}},
		{4, time.Hour, "frobnicating the widget timed out, falling back to MSI", nil},
		{4, time.Minute, "frobnicating the widget timed out", nil}, // the machine starts
		{3, time.Minute, "frobnicating the widget timed out", []string{reported}},
		{6, time.Hour, "frobnicating the widget timed out", nil},
	} {
		log := testLog(t)
		said := record(1, c.up, "mlx5_core 0000:3b:00.0: "+c.text)
		said.Level = c.level
		source := KernelLogSource(log, slog.New(slog.DiscardHandler), kernelSays(nil, []kmsg.KernelRecord{said}),
			func(uint64) {})
		if err := source.Run(t.Context(), func(detect.Change) {}); err != nil {
			t.Fatal(err)
		}
		got := kernelFindings(t, New(DefaultSettings(), log, &detect.StateSources{}, nil), time.Hour)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("level %d, %v after boot: %s (-want +got):\n%s", c.level, c.up, c.text, diff)
		}
	}
}

// TestKernelLogLeavesToState: a rule is left to the check that reads the state behind it, as long as that check can.
func TestKernelLogLeavesToState(t *testing.T) {
	log := testLog(t)
	source := KernelLogSource(log, slog.New(slog.DiscardHandler),
		kernelSays(nil, []kmsg.KernelRecord{record(1, time.Minute,
			"md/raid1:md0: Disk failure on sda1, disabling device.")}), nil)
	if err := source.Run(t.Context(), func(detect.Change) {}); err != nil {
		t.Fatal(err)
	}
	observation := func(err error, up time.Duration) finding.Observation {
		return finding.Observation{Check: "md-arrays", At: finding.Timestamp{SinceBoot: up}, Err: err}
	}
	for name, test := range map[string]struct {
		observations []finding.Observation
		leaves       bool
	}{
		"has not run yet": {nil, true},
		"it can":          {[]finding.Observation{observation(nil, time.Minute)}, true},
		"it has no means": {[]finding.Observation{observation(finding.NotApplicable("no driver reports it"),
			time.Minute)}, false},
		"none is left":       {[]finding.Observation{observation(finding.NoneLeft("no arrays"), time.Minute)}, true},
		"blind for a moment": {[]finding.Observation{observation(errors.New("read"), 2*time.Minute)}, true},
		"blind for long": {[]finding.Observation{observation(errors.New("read"), 30*time.Second),
			observation(errors.New("read"), time.Minute)}, false},
		"can again": {[]finding.Observation{observation(errors.New("read"), 0), observation(nil, time.Minute)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := witnessing("md-arrays")
			for _, l := range test.observations {
				w.Observe(l)
			}
			got := kernelFindings(t, New(DefaultSettings(), log, w, nil), 3*time.Minute)
			if (len(got) == 0) != test.leaves {
				t.Errorf("%q, leaves it to the state: want %v", got, test.leaves)
			}
		})
	}
	if got := kernelFindings(t, New(DefaultSettings(), log, witnessing(), nil), 3*time.Minute); len(got) == 0 {
		t.Error("left to a check that is switched off")
	}
}

// TestKernelLogAsTheUserWantsIt: one rule is switched off, another is more severe, and an unknown ID is reported.
func TestKernelLogAsTheUserWantsIt(t *testing.T) {
	s := Settings{Rules: map[string]RuleSettings{"ext4-error": {Off: true}, "kernel-oops": {Severity: finding.Info}}}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	h := &host.Host{NodeName: "n", Clock: hosttest.Clock, KernelLog: func(_ context.Context,
		each func(kmsg.KernelRecord)) error {
		each(record(1, time.Minute, "Oops: 0000 [#1] PREEMPT SMP NOPTI"))
		each(record(2, time.Minute, "EXT4-fs error (device sda1): x"))
		return nil
	}}
	findings, err := New(s, nil, &detect.StateSources{}, nil).Run(t.Context(), h)
	if err != nil || len(findings) != 1 || findings[0].Severity != finding.Info {
		t.Errorf("%+v, %v", findings, err)
	}
	s.Rules["nonsense"] = RuleSettings{}
	if wrong, _ := errors.AsType[setting.Mistakes](s.Validate()); len(wrong) != 1 || wrong["rules.nonsense"] == "" {
		t.Errorf("mistakes: %v", wrong)
	}
}

// TestKernelLogWakesTheEngine: a record makes the check run at once, although the check's interval is a minute.
func TestKernelLogWakesTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := testLog(t)
		clock := func() finding.Timestamp { return finding.Timestamp{Boot: "b", SinceBoot: time.Minute} }
		source := KernelLogSource(log, slog.New(slog.DiscardHandler), func(ctx context.Context, _ *slog.Logger,
			each func(kmsg.KernelRecord), caughtUp func()) error {
			caughtUp()
			<-time.After(5 * time.Second)
			each(record(1, time.Minute, "Kernel panic - not syncing: x"))
			<-ctx.Done()
			return nil
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var found time.Duration
		e := detect.NewEngine(&host.Host{Clock: clock}, slog.New(slog.DiscardHandler),
			[]detect.Check{New(DefaultSettings(), log, &detect.StateSources{}, nil)}, []detect.Source{source}, detect.Observer{},
			func(l finding.Observation) {
				if l.Check == ID && len(l.Findings) > 0 && found == 0 {
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

// TestRealKernelLog makes a real filesystem fail and receives the record of the real kernel, while a program writes the
// same line about another filesystem.
func TestRealKernelLog(t *testing.T) {
	need.Root(t, "reads /dev/kmsg and mounts a filesystem")
	fs := hosttest.NewLoopFS(t, "ext4")
	dir := t.TempDir()
	fs.Mount(dir, "errors=remount-ro")
	log := testLog(t)
	// more than the test causes; the test needs no more
	received, done := make(chan string, 1024), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	source := KernelLogSource(log, slog.New(slog.DiscardHandler), func(ctx context.Context, logger *slog.Logger,
		each func(kmsg.KernelRecord), caughtUp func()) error {
		return kmsg.WatchKernelLog(ctx, logger, func(r kmsg.KernelRecord) {
			each(r)
			select {
			case received <- r.Text:
			default:
			}
		}, caughtUp)
	}, nil)
	go func() { done <- source.Run(ctx, func(detect.Change) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// A program writes until its line is received: after that the source certainly reads.
	say(t, received, "<3>EXT4-fs error (device forged1): a program wrote this", "forged1")
	fs.TriggerError()
	awaitRecord(t, received, "Remounting filesystem read-only")
	subject := finding.Subject{Kind: "filesystem", Name: fs.Name()}
	findings, err := New(DefaultSettings(), log, &detect.StateSources{}, nil).Run(t.Context(), &host.Host{Clock: host.Now})
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

// say writes a line to the kernel's log as a program, repeatedly until it is received.
func say(t *testing.T, received <-chan string, line, part string) {
	t.Helper()
	for range 600 {
		if err := os.WriteFile("/dev/kmsg", []byte(line), 0); err != nil {
			t.Fatal(err)
		}
		timeout := time.After(100 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case text := <-received:
				if strings.Contains(text, part) {
					return
				}
			case <-timeout:
				waiting = false
			}
		}
	}
	t.Fatalf("%q was never received", line)
}

func awaitRecord(t *testing.T, received <-chan string, part string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case text := <-received:
			if strings.Contains(text, part) {
				return
			}
		case <-timeout:
			t.Fatalf("%q was not received", part)
		}
	}
}

// TestKernelLogGapOverRestarts: records that the kernel logged while no agent ran are reported by kernel-log, in every
// later run of the agent, until they expire.
func TestKernelLogGapOverRestarts(t *testing.T) {
	const line = "Out of memory: Killed process 77 (stress) total-vm:1024kB, anon-rss:512kB, file-rss:0kB, " +
		"shmem-rss:0kB, UID:0 pgtables:40kB oom_score_adj:0"
	store := checktest.StateStore{}
	said := []kmsg.KernelRecord{record(1, 5*time.Minute, "nothing"), record(2, 25*time.Minute, line)}
	for _, run := range []struct {
		name     string
		from, to time.Duration
		reported bool
	}{
		{"before it", 10 * time.Minute, 21 * time.Minute, false},
		{"after the gap", 30 * time.Minute, 31 * time.Minute, true},
		{"started again", 32 * time.Minute, 33 * time.Minute, true},
		{"and again", 34 * time.Minute, 35 * time.Minute, true},
		{"expired", 90 * time.Hour, 91 * time.Hour, false},
	} {
		kept := said
		if run.to < 25*time.Minute {
			kept = said[:1]
		}
		sources := &detect.StateSources{}
		sources.Enable([]detect.Check{{ID: oomkills.ID, CounterBased: true}})
		log := testLog(t)
		RestoreKernelLog(log, sources, store, "b")
		if err := KernelLogSource(log, slog.New(slog.DiscardHandler), kernelSays(kept, nil), nil).Run(t.Context(),
			func(detect.Change) {}); err != nil {
			t.Fatal(err)
		}
		sources.Observe(finding.Observation{Check: oomkills.ID, At: finding.Timestamp{Boot: "b", SinceBoot: run.from}})
		check := New(DefaultSettings(), log, sources, store)
		if got := kernelFindings(t, check, run.to); (len(got) > 0) != run.reported {
			t.Errorf("%s: %v, want a finding: %t", run.name, got, run.reported)
		}
		SaveKernelLog(log, sources, store, finding.Timestamp{Boot: "b", SinceBoot: run.to}, true)
	}
}
