package npd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// filesCheck tells of files that cannot be run. The others are run.
func filesCheck(broken []error) detect.Check {
	return detect.Check{
		ID: "npd-files", Domain: domain, Every: time.Minute,
		Summary: "a configuration file of node-problem-detector cannot be run",
		Advice: "correct the file, see nodeagent config from-npd FILE, then nodeagent reload; or leave it out of " +
			"nodeProblemDetector.files",
		Doc: detect.Doc{
			Reads: []string{"the files that nodeProblemDetector.files names, at the start and at each reload"},
			Why:   "What such a file looks for is not looked for: the others go on.",
			Faults: []detect.Fault{{Reason: "MonitorFileInvalid", Severity: finding.Warning,
				When: "a file is no JSON, of no known monitor, or asks for what cannot be"}},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			var findings []finding.Finding
			for i, err := range broken {
				file, _, _ := strings.Cut(err.Error(), ":")
				findings = append(findings, finding.Finding{
					Subject: finding.Subject{Kind: "file", Name: file}, Severity: finding.Warning,
					Reason:  "MonitorFileInvalid",
					Message: fmt.Sprintf("it is not run: %v", err),
				})
				if i > 100 {
					break
				}
			}
			return findings, nil
		},
	}
}
