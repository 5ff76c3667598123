package checks

import (
	"maps"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// TestCoverage: what is said to find a fault exists, and each check and each rule is there for some fault.
func TestCoverage(t *testing.T) {
	exists := map[string]bool{}
	for _, c := range Checks(DefaultSettings(), Deps{}) {
		exists[c.ID] = true
	}
	for _, r := range rules.Kernel() {
		exists[r.ID] = true
	}
	for _, r := range rules.Daemons() {
		if exists[r.ID] {
			t.Errorf("%q is the name of a rule of the daemons and of another rule or a check", r.ID)
		}
		exists[r.ID] = true
		if r.ConfirmedBy != "" && !exists[r.ConfirmedBy] {
			t.Errorf("the daemons' rule %s names %q, which is no check", r.ID, r.ConfirmedBy)
		}
	}
	idle := maps.Clone(exists)
	delete(idle, "kernel-log") // stands for all rules
	for _, k := range Known() {
		if k.Fault == "" || (len(k.By) == 0) != (k.Not != "") {
			t.Errorf("%q: found by %q, left out because of %q: exactly one of them", k.Fault, k.By, k.Not)
		}
		if strings.Contains(k.Fault+k.Not, "TODO") {
			t.Errorf("not written yet: %q, %q", k.Fault, k.Not)
		}
		for _, id := range k.By {
			delete(idle, id)
			if !exists[id] {
				t.Errorf("%q is found by %q, which is neither a check nor a rule", k.Fault, id)
			}
		}
	}
	for id := range idle {
		t.Errorf("%q is there for no known fault", id)
	}
}
