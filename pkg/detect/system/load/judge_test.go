package load

import (
	"testing"
)

// TestBlockedTasksMustShowInTheLoad: tasks blocked during one scan only are no fault. Only the load of five minutes, or
// an earlier scan, proves that they have been blocked for long.
func TestBlockedTasksMustShowInTheLoad(t *testing.T) {
	s := DefaultSettings()
	for _, test := range []struct {
		name string
		seen LoadSeen
		want bool
	}{
		{"in one scan", LoadSeen{CPUs: 64, Load5: 2, Blocked: 50}, false},
		{"the load shows them", LoadSeen{CPUs: 64, Load5: 48, Blocked: 50}, true},
		{"an earlier scan has seen them", LoadSeen{CPUs: 64, Load5: 2, Blocked: 50, BlockedLong: 50}, true},
		{"the load is of others", LoadSeen{CPUs: 64, Load5: 48, Blocked: 1}, false},
	} {
		found := false
		for _, f := range test.seen.evaluate(s) {
			found = found || f.reason == "BlockedTasks"
		}
		if found != test.want {
			t.Errorf("%s: found %v, want %v", test.name, found, test.want)
		}
	}
}

// TestBlockedTasksAreNoFatalLoad: tasks blocked in the kernel use no processor, and a pod whose file server is gone
// has as many of them as it likes. The load is fatal by the others alone.
func TestBlockedTasksAreNoFatalLoad(t *testing.T) {
	s := DefaultSettings()
	for name, test := range map[string]struct {
		seen LoadSeen
		want bool
	}{
		"a pod's blocked tasks":           {LoadSeen{CPUs: 2, Load5: 100, Load15: 100, Blocked: 90, BlockedLong: 90}, false},
		"blocked for a moment each":       {LoadSeen{CPUs: 2, Load5: 100, Load15: 100, Blocked: 90}, false},
		"they wait for processors":        {LoadSeen{CPUs: 2, Load5: 100, Load15: 100}, true},
		"enough others beside blocked":    {LoadSeen{CPUs: 2, Load5: 100, Load15: 100, Blocked: 59}, true},
		"memory stalls, tasks blocked":    {LoadSeen{CPUs: 2, Load15: 100, Blocked: 100, Memory: pressure{Known: true, Full300: 70}}, true},
		"more blocked than the load says": {LoadSeen{CPUs: 2, Load15: 50, Blocked: 200}, false},
	} {
		if got := test.seen.isFatal(s, false); got != test.want {
			t.Errorf("%s: fatal %t, want %t", name, got, test.want)
		}
	}
}
