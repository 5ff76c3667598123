package event

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestWordings(t *testing.T) {
	fatal := finding.Finding{Check: "npd-kernel", Subject: finding.Subject{Kind: "condition", Name: "KernelDeadlock"},
		Severity: finding.Fatal,
		Reason:   "DockerHung", Message: `task "docker" hung`}
	warning, other := fatal, fatal
	warning.Severity, other.Check = finding.Warning, "disk"
	r := New(Config{Wordings: map[string]finding.Wording{"npd-kernel": {Source: "kernel-monitor", Condition: finding.Condition{
		Type: "KernelDeadlock", HealthyReason: "KernelHasNoDeadlock", HealthyMessage: "kernel has no deadlock",
	}}}})
	for _, test := range []struct {
		update finding.Update
		want   string
	}{
		{finding.Update{Kind: finding.Raised, Finding: fatal},
			`kernel-monitor Warning DockerHung Node condition KernelDeadlock is now: True, reason: DockerHung, message: "task \"docker\" hung"`},
		{finding.Update{Kind: finding.Cleared, Finding: fatal},
			`kernel-monitor Normal KernelHasNoDeadlock Node condition KernelDeadlock is now: False, reason: KernelHasNoDeadlock, message: "kernel has no deadlock"`},
		{finding.Update{Kind: finding.Raised, Finding: warning},
			`kernel-monitor Warning DockerHung task "docker" hung`},
		{finding.Update{Kind: finding.Raised, Finding: other}, ` Warning DockerHung task "docker" hung`},
	} {
		n, _ := r.noteOf(test.update)
		if diff := cmp.Diff(test.want, strings.Join([]string{n.Source, n.Type, n.Reason, n.Message}, " ")); diff != "" {
			t.Error(diff)
		}
	}
}
