package storage

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// FuzzDiskPages: any bytes of a disk give a value or an error.
func FuzzDiskPages(f *testing.F) {
	for _, size := range []int{32, 96, 256, 512, 1088} {
		f.Add(make([]byte, size))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if log, unwell, err := parseNVMeSMART(data); err != nil && (unwell || log != nvmeSMART{}) {
			t.Fatal("error and value")
		} else if err == nil && unwell && !log.evaluate(&finding.Finding{}, 0) {
			t.Fatal("unwell, but nothing is wrong")
		}
		for _, parse := range []func([]byte) (diskSMART, bool, error){parseATAHealth, parseInformationalExceptions} {
			if s, unwell, err := parse(data); err != nil && (unwell || s != diskSMART{}) {
				t.Fatal("error and value")
			} else if err == nil && unwell && !s.evaluate(&finding.Finding{}, 0) {
				t.Fatal("unwell, but nothing is wrong")
			}
		}
		if exceeded, err := parseEBSStats(data); err != nil && exceeded != [4]time.Duration{} {
			t.Fatal("error and value")
		}
	})
}

func TestErrorCounters(t *testing.T) {
	kept := checktest.StateStore{}
	at := func(boot string, up time.Duration) finding.Timestamp {
		return finding.Timestamp{Boot: boot, SinceBoot: up}
	}
	counters := newErrorCounters(kept, "x")
	for i, step := range []struct {
		count   uint64
		at      finding.Timestamp
		restart bool
		want    uint64
	}{
		{7, at("a", time.Hour), false, 0},     // old errors
		{9, at("a", 2*time.Hour), true, 2},    // known from before the restart
		{10, at("a", 3*time.Hour), false, 3},  // all growth of the day
		{10, at("a", 26*time.Hour), true, 3},  // survives one, too
		{10, at("a", 27*time.Hour), false, 0}, // a day later
		{11, at("a", 28*time.Hour), false, 1}, // starts again
		{11, at("b", time.Minute), true, 0},   // another boot: it is unknown how long ago it was
		{3, at("b", 2*time.Minute), false, 0}, // another disk, or reset
		{4, at("b", 3*time.Minute), false, 1},
	} {
		if step.restart {
			counters = newErrorCounters(kept, "x")
		}
		if got := counters.add("disk", step.count, step.at); got != step.want {
			t.Errorf("step %d: grown by %d, want %d", i, got, step.want)
		}
	}
	if diff := cmp.Diff(`{"disk":{"count":4,"from":3,"boot":"b","up":180000000000}}`, string(kept["x"])); diff != "" {
		t.Error(diff)
	}
}

// Clouds attach volumes to a node and remove them for years: the present ones must be counted, not the former ones.
func TestErrorCountersForgetTheOldest(t *testing.T) {
	kept, now := checktest.StateStore{}, finding.Timestamp{Boot: "a", SinceBoot: time.Hour}
	counters := newErrorCounters(kept, "x")
	counters.add("stays", 1, now)
	for i := range maxCounters {
		counters.add(fmt.Sprintf("volume %d", i), 1, now)
		counters.add("stays", 1, now)
	}
	counters = newErrorCounters(kept, "x")
	counters.add("stays", 1, now)
	counters.add("new", 1, now)
	for _, disk := range []string{"stays", "new"} {
		if grown := counters.add(disk, 3, now); grown != 2 {
			t.Errorf("%s has grown by %d, want 2", disk, grown)
		}
	}
	if len(counters.disks) > maxCounters {
		t.Errorf("%d disks are remembered", len(counters.disks))
	}
}
