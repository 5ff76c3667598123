package main

// checkTemplate is a check that reads one number, as most checks begin. FOLDER, SHOWN, CAMEL and CHECKID are replaced.
const checkTemplate = `package FOLDER

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// CHECKID reads
//
//	/sys/kernel/CHECKID/errors    2     TODO: what the kernel shows there, and an example
//
// TODO: the link to its documentation.

// CAMEL finds TODO.
func CAMEL() detect.Check {
	return detect.Check{
		ID: "CHECKID", Domain: "SHOWN",
		Summary: "TODO: what is wrong when this check finds something",
		Advice:  "TODO: what to do next.",
		Doc: detect.Doc{
			Reads:       []string{"/sys/kernel/CHECKID/errors"},
			Why:         "TODO: why it matters to pods.",
			Faults:      []detect.Fault{{Reason: "CAMEL", Severity: finding.Warning, When: "TODO: the threshold, and why it is that one"}},
			FalseAlarms: "TODO: what resembles the fault and is none.",
		},
		Every: time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return readCAMEL(h)
		},
	}
}

// readCAMEL returns the findings; none and no error: certainly healthy; an error: unknown.
func readCAMEL(h *host.Host) ([]finding.Finding, error) {
	count, err := checkkit.ReadNumber(h.Files, "/sys/kernel/CHECKID/errors")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("TODO: what this machine does not have")
	}
	if err != nil || count == 0 {
		return nil, err
	}
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "CAMEL",
		Message: fmt.Sprintf("TODO: %d errors", count),
		Facts:   map[string]string{"errors": strconv.Itoa(count)},
	}}, nil
}
`

// fixtureTemplates are the three kinds of fixtures of each check: pkg/detect/checks/fixtures_test.go.
func fixtureTemplates() map[string]string {
	return map[string]string{
		"ok": `A healthy machine.
Source: TODO, such as: recorded 2026-01-31 on Linux 6.12, or: https://docs.kernel.org/… (Linux 6.12)
-- want.json --
{}
-- sys/kernel/CHECKID/errors --
0
`,
		"bad": `TODO: the fault, recorded from a real machine or copied from the kernel's documentation; see ok.txtar.
-- want.json --
{"findings": [{"check": "CHECKID", "subject": {"kind": "node", "name": "fixture"}, "severity": "warning", "reason": "CAMEL",
 "message": "TODO: 2 errors", "facts": {"errors": "2"}}]}
-- sys/kernel/CHECKID/errors --
2
`,
		"broken": `The file is truncated.
-- want.json --
{"error": "read /sys/kernel/CHECKID/errors"}
-- sys/kernel/CHECKID/errors --

`,
	}
}
