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

const filesAdvice = "Correct the file (`nodeagent config validate` names the place), then run `nodeagent reload`; or remove it " +
	"from nodeProblemDetector.files"

// filesCheck reports files that cannot be run. The other files are run.
func filesCheck(broken []error) detect.Check {
	return detect.Check{
		ID: "npd-files", Domain: domain, Every: time.Minute,
		Summary: "a configuration file of node-problem-detector cannot be run",
		Advice:  filesAdvice,
		Doc: detect.Doc{
			Reads: []string{"the files that nodeProblemDetector.files names, at the start and at each reload"},
			Why: "The faults that such a file describes are not detected, and the checks of its conditions cannot tell; the " +
				"other files are run.",
			Faults: []detect.Fault{{Reason: "MonitorFileInvalid", Severity: finding.Warning,
				When: "a file is not JSON, of an unknown monitor, invalid, or others than root can change it"}},
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
