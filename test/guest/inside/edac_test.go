package inside

import "testing"

// TestMemoryErrors: memory controllers report errors through the kernel's own EDAC, by module and by rank. Corrected
// errors are reported by their number, for their module; an uncorrected error is fatal. The kernel log lines about them
// are not reported in addition.
func TestMemoryErrors(t *testing.T) {
	a := watch(t)
	insert(t, "guest_memory")
	const (
		module = "CPU_SrcID#0_MC#0_Chan#1_DIMM#0"
		rank   = "mc#1csrow#0channel#0" // the kernel's own label
	)
	is := func(subject, reason, severity string) func(believed) bool {
		return func(f believed) bool {
			return f.Subject.Kind == "memory-module" && f.Subject.Name == subject && f.Reason == reason &&
				f.Severity == severity
		}
	}
	for _, step := range []struct {
		parameter, errors         string
		subject, reason, severity string
	}{
		{"corrected", "0 1 12", module, "MemoryReadError", "info"},
		{"corrected", "0 1 100", module, "MemoryReadError", "warning"},
		{"corrected", "0 -1 15", "mc0: module unknown", "MemoryReadError", "info"},
		{"uncorrected", "1 0 1", rank, "MemoryUncorrectedError", "fatal"},
	} {
		setParameter(t, "guest_memory", step.parameter, step.errors)
		a.awaitFound("edac", is(step.subject, step.reason, step.severity), true)
	}
	for _, f := range a.status().Findings {
		if f.Subject.Kind == "memory-module" && f.Check != "edac" {
			t.Errorf("reported twice: %+v", f)
		}
	}
	put(t, "/sys/devices/system/edac/mc/mc1/reset_counters", "1")
	a.awaitFound("edac", is(rank, "MemoryUncorrectedError", "fatal"), false)
	a.awaitFound("edac", is(module, "MemoryReadError", "warning"), true) // of the last 24 hours
	run(t, "rmmod", "guest_memory")
	a.awaitReason("edac", "", "", false)
}
