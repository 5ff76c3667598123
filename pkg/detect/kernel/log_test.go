package kernel

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestLogHoldsAndForgets(t *testing.T) {
	log := NewLog(newTable(t))
	if _, err := log.Findings(0, nil); err == nil {
		t.Error("a log that nobody read has an answer")
	}
	log.Begin()
	minute := time.Minute
	log.Observe("EXT4-fs (sda1): Remounting filesystem read-only", minute)
	log.Observe("EXT4-fs error (device sda1): x", minute)
	log.Observe("nfs: server a not responding, still trying", minute)
	log.Observe("TCP: too many orphaned sockets", minute)
	log.Observe("usb 1-1: Product: Kernel panic - not syncing", minute)
	reasons := func(now time.Duration, leave func(*Rule) bool) (got []string) {
		findings, err := log.Findings(now, leave)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if err := (func() error { f.Check = "kernel-log"; return f.Problem() })(); err != nil {
				t.Error(err)
			}
			got = append(got, f.Reason+" "+subjectText(f.Subject)+" "+string(f.Severity))
		}
		return got
	}
	ext4, nfs, tcp := "FilesystemIsReadOnly filesystem/sda1 fatal", "NFSServerNotResponding nfs-server/a warning", "TCPMemoryExhausted node warning"
	if diff := cmp.Diff([]string{ext4, nfs, tcp}, reasons(2*minute, nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{nfs, tcp}, reasons(2*minute, func(r *Rule) bool { return r.Domain == Storage && r.ConfirmedBy != "hung-mounts" })); diff != "" {
		t.Error(diff)
	}
	log.Observe("nfs: server a OK", 3*minute)
	if diff := cmp.Diff([]string{ext4}, reasons(20*minute, nil)); diff != "" { // TCP's record has expired
		t.Error(diff)
	}
	log.Lost(7, 21*minute)
	if diff := cmp.Diff([]string{ext4, "KernelRecordsLost source/kernel-log warning"}, reasons(21*minute, nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{ext4}, reasons(1000*time.Hour, nil)); diff != "" { // until the next boot
		t.Error(diff)
	}
}

// TestLogFlood: 20,000 lines of 20,000 devices; nothing of the highest severity is lost and little time is used.
func TestLogFlood(t *testing.T) {
	log := NewLog(newTable(t))
	log.Begin()
	began := time.Now()
	for i := range 20000 {
		up := time.Duration(i) * 100 * time.Microsecond
		switch i {
		case 100:
			log.Observe("Kernel panic - not syncing: early", up)
		case 10000:
			log.Observe("EXT4-fs (sda1): Remounting filesystem read-only", up)
		case 19999:
			log.Observe("Watchdog detected hard LOCKUP on cpu 3", up)
		default:
			log.Observe(fmt.Sprintf("I/O error, dev sd%d, sector %d op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0", i, i), up)
		}
	}
	took := time.Since(began)
	findings, err := log.Findings(2*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	fatal := 0
	for _, f := range findings {
		if f.Severity == finding.Fatal {
			fatal++
		}
	}
	if fatal != 3 || len(findings) > maxHeld {
		t.Errorf("%d fatal findings of 3, %d in all, limit %d", fatal, len(findings), maxHeld)
	}
	t.Logf("20,000 lines took %v", took)
	if took > 5*time.Second { // the promise is one CPU second; the race detector and a busy machine are slower
		t.Errorf("20,000 lines took %v", took)
	}
}
