package proc_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

func TestParseStat(t *testing.T) {
	for name, test := range map[string]struct {
		data string
		want proc.Stat
	}{
		"plain": {"1 (init) S 0" + hosttest.StatTail, proc.Stat{PID: 1, Comm: "init", State: 'S', Threads: 1,
			StartTime: 339, Flags: 4194560, CPUTicks: 11}},
		"hostile": {"12 (a) R (b\n c) D 3" + hosttest.StatTail, proc.Stat{PID: 12, PPID: 3, Comm: "a) R (b\n c",
			State: 'D', Threads: 1, StartTime: 339, Flags: 4194560, CPUTicks: 11}},
		"no name": {"12 () Z 3" + hosttest.StatTail + "\n", proc.Stat{PID: 12, PPID: 3, State: 'Z', Threads: 1,
			StartTime: 339, Flags: 4194560, CPUTicks: 11}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := proc.ParseStat([]byte(test.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, bad := range []string{"", "1", "1 (init", "1 (init)", "1 (init) S 0 1", "x (init) S 0" + hosttest.StatTail,
		"1 (init) SS 0" + hosttest.StatTail, "1 (init) S -1" + hosttest.StatTail,
		"1 (init) S 0 1 1 0 -1 4194560 2 0 0 0 5 6 0 0 20 0 1 0 x", "1 )init( S 0" + hosttest.StatTail} {
		if got, err := proc.ParseStat([]byte(bad)); err == nil {
			t.Errorf("ParseStat(%q) = %+v, want an error", bad, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) R (b\n c) D 3" + hosttest.StatTail))
	f.Fuzz(func(t *testing.T, data []byte) {
		if stat, err := proc.ParseStat(data); err != nil && stat != (proc.Stat{}) {
			t.Fatal("error and value")
		}
	})
}
