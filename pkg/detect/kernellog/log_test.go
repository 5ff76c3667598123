package kernellog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules/rulestest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestLogHoldsAndForgets(t *testing.T) {
	log := NewLog(newTable(t))
	minute := time.Minute
	var sequence uint64
	say := func(text string, up time.Duration) {
		log.Observe(kmsg.KernelRecord{Sequence: sequence, Up: up, Text: text})
		sequence++
	}
	say("EXT4-fs (sda1): Remounting filesystem read-only", minute)
	say("EXT4-fs error (device sda1): x", minute)
	say("nfs: server a not responding, still trying", minute)
	say("TCP: too many orphaned sockets", minute)
	say("usb 1-1: Product: Kernel panic - not syncing", minute)
	reasons := func(now time.Duration, leave func(*rules.Rule, time.Duration) bool) (got []string) {
		for _, f := range log.Findings(now, leave) {
			if err := (func() error { f.Check = "kernel-log"; return f.Problem() })(); err != nil {
				t.Error(err)
			}
			got = append(got, f.Reason+" "+rulestest.SubjectText(f.Subject)+" "+string(f.Severity))
		}
		return got
	}
	ext4, nfs, tcp := "FilesystemIsReadOnly filesystem/sda1 fatal", "NFSServerNotResponding nfs-server/a warning",
		"TCPMemoryExhausted node warning"
	if diff := cmp.Diff([]string{ext4, nfs, tcp}, reasons(2*minute, nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{nfs, tcp}, reasons(2*minute, func(r *rules.Rule, _ time.Duration) bool {
		return r.Domain == rules.Storage && r.ConfirmedBy != "hung-mounts"
	})); diff != "" {
		t.Error(diff)
	}
	say("nfs: server a OK", 3*minute)
	if diff := cmp.Diff([]string{ext4}, reasons(20*minute, nil)); diff != "" { // TCP's record has expired
		t.Error(diff)
	}
	sequence += 7
	say("usb 1-1: new device", 21*minute)
	if diff := cmp.Diff([]string{ext4, "KernelRecordsLost source/kernel-log warning"},
		reasons(21*minute, nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{ext4}, reasons(1000*time.Hour, nil)); diff != "" { // until the next boot
		t.Error(diff)
	}
}

// Of several faults with the same severity the latest is reported, and an earlier one again when that has ended.
func TestLogReportsTheLatest(t *testing.T) {
	log := NewLog(newTable(t))
	minute := time.Minute
	for i, said := range []struct {
		up   time.Duration
		text string
	}{
		{1 * minute, "BUG: Bad page state in process x  pfn:02f40"}, // until boot
		{2 * minute, "rcu: INFO: rcu_preempt self-detected stall on CPU"},
		{3 * minute, "BUG: Bad page state in process x  pfn:02f41"},
	} {
		log.Observe(kmsg.KernelRecord{Sequence: uint64(i), Up: said.up, Text: said.text})
	}
	again := NewLog(newTable(t))
	again.restore(log.snapshot("boot", true))
	for name, l := range map[string]*Log{"first run": log, "next run": again} {
		got := l.Findings(3*minute, nil)
		if len(got) != 1 || got[0].Reason != "RCUStall" || !strings.HasSuffix(got[0].Message,
			"; also KernelMemoryCorruption") {
			t.Errorf("%s: %+v", name, got)
		}
		if got := l.Findings(time.Hour, nil); len(got) != 1 || got[0].Reason != "KernelMemoryCorruption" {
			t.Errorf("%s, later: %+v", name, got)
		}
	}
}

// flood gives a log 20,000 lines of 20,000 devices, three of them of the highest severity.
func flood(log *Log) {
	for i := range 20000 {
		r := kmsg.KernelRecord{Sequence: uint64(i), Up: time.Duration(i) * 100 * time.Microsecond}
		switch i {
		case 100:
			r.Text = "Kernel panic - not syncing: early"
		case 10000:
			r.Text = "EXT4-fs (sda1): Remounting filesystem read-only"
		case 19999:
			r.Text = "Watchdog detected hard LOCKUP on cpu 3"
		default:
			r.Text = fmt.Sprintf("I/O error, dev sd%d, sector %d op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0", i, i)
		}
		log.Observe(r)
	}
}

// TestLogFlood: in a flood no record of the highest severity is lost, and the number of held matches is bounded.
func TestLogFlood(t *testing.T) {
	log := NewLog(newTable(t))
	flood(log)
	findings := log.Findings(2*time.Second, nil)
	fatal := 0
	for _, f := range findings {
		if f.Severity == finding.Fatal {
			fatal++
		}
	}
	if fatal != 3 || len(findings) > maxHeld {
		t.Errorf("%d fatal findings of 3, %d in all, limit %d", fatal, len(findings), maxHeld)
	}
}

// BenchmarkLogFlood: the limit is one CPU second.
func BenchmarkLogFlood(b *testing.B) {
	table := newTable(b)
	for b.Loop() {
		flood(NewLog(table))
	}
}

// TestLogAcrossRuns: matches that an earlier run reported are kept even if the kernel has dropped their records, and
// not counted again if it has not; records from between the runs are found, or their loss is.
func TestLogAcrossRuns(t *testing.T) {
	line := func(i int) kmsg.KernelRecord {
		text := fmt.Sprintf("usb 1-1: line %d", i)
		switch i {
		case 10:
			text = "Kernel panic - not syncing: early"
		case 40, 60:
			text = "EXT4-fs error (device sda1): x"
		}
		return kmsg.KernelRecord{Sequence: uint64(i), Up: time.Minute + time.Duration(i)*time.Second, Text: text}
	}
	read := func(log *Log, from, to int) *Log {
		for i := from; i < to; i++ {
			log.Observe(line(i))
		}
		return log
	}
	first := read(NewLog(newTable(t)), 0, 50)
	for name, test := range map[string]struct {
		last     bool
		boot     string
		from, to int // the records that the second run reads
		want     []string
	}{
		"all is there still":       {true, "b", 0, 55, []string{"KernelPanic 1", "Ext4Error 1"}},
		"the oldest are not":       {true, "b", 30, 55, []string{"KernelPanic 1", "Ext4Error 1"}},
		"written between the runs": {true, "b", 30, 70, []string{"KernelPanic 1", "Ext4Error 2"}},
		"dropped between the runs": {true, "b", 55, 70, []string{"KernelPanic 1", "Ext4Error 2",
			"KernelRecordsLost 5"}},
		"perhaps seen by the killed": {false, "b", 55, 70, []string{"KernelPanic 1", "Ext4Error 2"}},
		"another boot":               {true, "c", 45, 70, []string{"Ext4Error 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			store := checktest.StateStore{}
			second := NewLog(newTable(t))
			SaveKernelLog(first, &detect.StateSources{}, store, finding.Timestamp{Boot: "b"}, test.last)
			RestoreKernelLog(second, &detect.StateSources{}, store, test.boot)
			for range 2 { // a restarted source reads from the beginning
				read(second, test.from, test.to)
			}
			var got []string
			for _, f := range second.Findings(3*time.Minute, nil) {
				got = append(got, f.Reason+" "+f.Facts["count"]+f.Facts["lost"])
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
