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
//	/sys/kernel/CHECKID/errors    2     TODO: what the kernel shows where, and an example
//
// TODO: the document that says so, why this threshold, what looks like the fault and is none.

const LOWERID = "CHECKID"

// CAMEL finds TODO.
func CAMEL() detect.Check {
	return detect.Check{
		ID: LOWERID, Domain: "SHOWN",
		Summary: "TODO: what is wrong when this check finds something",
		Advice:  "TODO: what a person should do next.",
		Doc: detect.Doc{
			Reads:       []string{"/sys/kernel/CHECKID/errors"},
			Why:         "TODO: why it matters to pods.",
			Faults:      []detect.Fault{{Reason: "CAMEL", Severity: finding.Warning, When: "TODO: the threshold, and why it is that one"}},
			FalseAlarms: "TODO: what may look like it and is none.",
		},
		Every: time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return readCAMEL(h)
		},
	}
}

// readCAMEL returns the findings; nothing at all: healthy for certain; an error: this look has learnt nothing.
func readCAMEL(h *host.Host) ([]finding.Finding, error) {
	count, err := checkkit.ReadNumber(h.Files, "/sys/kernel/CHECKID/errors")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, finding.NotApplicable("TODO: what this machine does not have")
	}
	if err != nil || count == 0 {
		return nil, err
	}
	return []finding.Finding{{
		Check: LOWERID, Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "CAMEL",
		Message: fmt.Sprintf("TODO: %d errors", count),
		Facts:   map[string]string{"errors": strconv.Itoa(count)},
	}}, nil
}
`

// fixtureTemplates are the three kinds of machines that each check is shown: pkg/detect/checks/fixtures_test.go.
func fixtureTemplates() map[string]string {
	return map[string]string{
		"ok": `TODO: a healthy machine; where the files are from, and which kernel it was.
-- want.json --
{}
-- sys/kernel/CHECKID/errors --
0
`,
		"bad": `TODO: the fault, recorded from a real machine or taken from the kernel's documents; say which.
-- want.json --
{"findings": [{"check": "CHECKID", "subject": {"kind": "node", "name": "fixture"}, "severity": "warning", "reason": "CAMEL",
 "message": "TODO: 2 errors", "facts": {"errors": "2"}}]}
-- sys/kernel/CHECKID/errors --
2
`,
		"broken": `The file is cut off.
-- want.json --
{"error": "read /sys/kernel/CHECKID/errors"}
-- sys/kernel/CHECKID/errors --

`,
	}
}

const coverageTemplate = `{Fault: "TODO: the fault, as people of the field call it (CHECKID)", By: []string{"CHECKID"}},`
